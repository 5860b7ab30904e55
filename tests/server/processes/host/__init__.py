"""Tests of `processes/host`."""
