"""Tests of `jaxd demo`."""
