"""Tests of `processes/supervision`."""
