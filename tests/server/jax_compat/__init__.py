"""Tests of `jax_compat`."""
