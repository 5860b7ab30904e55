"""Tests of how a function is compiled."""
