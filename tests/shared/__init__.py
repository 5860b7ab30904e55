"""Tests of what both ends share."""
