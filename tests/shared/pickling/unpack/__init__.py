"""Tests of `pickling/unpack`."""
