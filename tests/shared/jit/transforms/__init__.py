"""Tests of `jit/transforms`."""
