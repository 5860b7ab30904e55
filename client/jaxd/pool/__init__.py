"""Calls on a pool: which of its servers makes each, and where the others' values are."""
