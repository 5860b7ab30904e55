"""Tests of `tracing`."""
