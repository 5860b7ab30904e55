"""Tests of `compilation/remote_trace`."""
