"""Tests of `cli/dashboard`."""
