"""Tests of `rpc`."""
