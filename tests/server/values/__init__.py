"""Tests of `values`."""
