"""Tests of `processes/tracer`."""
