"""The messages of the protocol: verbs, flags, data locations, failures, recipes.

`calls` has the wire on one screen.
"""
