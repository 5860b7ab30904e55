"""Tests of `events`."""
