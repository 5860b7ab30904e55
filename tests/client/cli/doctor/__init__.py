"""Tests of `cli/doctor`."""
