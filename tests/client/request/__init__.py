"""Tests of `request`."""
