"""Listeners, accepting and authenticating clients, accounts, and handover to workers."""
