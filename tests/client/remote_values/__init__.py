"""Tests of `remote_values`."""
