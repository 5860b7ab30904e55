"""Tests of `compilation`."""
