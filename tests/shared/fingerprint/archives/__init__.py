"""Tests of `fingerprint/archives`."""
