"""Tests of `compilation/functions`."""
