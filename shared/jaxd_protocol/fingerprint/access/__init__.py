"""Access paths and imports.

An access path (`cfg.model.width`) is followed to the one value that it reads.
"""
