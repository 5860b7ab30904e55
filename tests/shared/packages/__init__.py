"""Tests of `packages`."""
