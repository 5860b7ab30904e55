"""What clients ask beside calls, one file for each group of verbs.

Values, admin, why, inventory, recipes, stages; `requests` has their verbs.
"""
