"""Tests of `compilation/remote_build`."""
