"""Whole programs, run as scripts: their functions belong to `__main__` and travel by value."""
