"""Tests of `codec`."""
