"""What the two ends say.

Verbs, flags, data locations, failures, function manifests, recipes. The wire on one screen.
"""
