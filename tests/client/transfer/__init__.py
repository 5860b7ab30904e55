"""Tests of `transfer`."""
