"""Tests of transformations by name and by steps."""
