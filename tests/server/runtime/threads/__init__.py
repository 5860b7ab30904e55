"""Tests of `runtime/threads`."""
