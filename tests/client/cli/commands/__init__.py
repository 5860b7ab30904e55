"""Tests of `cli/commands`."""
