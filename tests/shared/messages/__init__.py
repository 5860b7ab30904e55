"""Tests of `messages`."""
