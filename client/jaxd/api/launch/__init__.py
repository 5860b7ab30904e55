"""Programs and test suites that are not changed: the hook, how they start, what they report."""
