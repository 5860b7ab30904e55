"""Tests of `processes/gateway`."""
