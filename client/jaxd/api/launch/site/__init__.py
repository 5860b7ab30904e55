"""For PYTHONPATH: what Python imports from here when a process starts."""
