"""Tests of `fingerprint/code`."""
