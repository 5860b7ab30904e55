"""Tests of `cache`."""
