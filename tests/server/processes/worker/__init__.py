"""Tests of `processes/worker`."""
