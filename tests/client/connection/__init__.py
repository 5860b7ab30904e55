"""Tests of `connection`."""
