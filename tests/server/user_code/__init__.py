"""Tests of `user_code`."""
