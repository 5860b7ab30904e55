"""Tests of `compilation/history`."""
