"""Tests of `pickling/pack`."""
