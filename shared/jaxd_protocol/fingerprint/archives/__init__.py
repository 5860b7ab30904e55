"""`ship="source"`: packages that count, and travel, as files."""
