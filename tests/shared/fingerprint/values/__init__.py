"""Tests of `fingerprint/values`."""
