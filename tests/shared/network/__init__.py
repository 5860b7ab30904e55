"""Tests of `network`."""
