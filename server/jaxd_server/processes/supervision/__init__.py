"""Keeping one worker alive: start, watch, replace, drain, and quarantine what kills it."""
