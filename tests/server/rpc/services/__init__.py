"""Tests of `rpc/services`."""
