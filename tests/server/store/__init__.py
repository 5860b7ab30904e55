"""Tests of what the server keeps on disk."""
