"""Differences between two keys or two argument lists, in sentences that a person can act on."""
