"""Tests of `fingerprint/access`."""
