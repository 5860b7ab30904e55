"""Which code is installed and which is the user's own.

Distributions, versions, importable names.
"""
