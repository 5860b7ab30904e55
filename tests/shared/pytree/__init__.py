"""Tests of `pytree`."""
