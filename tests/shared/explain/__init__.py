"""Tests of `explain`."""
