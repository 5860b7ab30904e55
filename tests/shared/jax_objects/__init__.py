"""Tests of what the protocol knows about jax's own objects."""
