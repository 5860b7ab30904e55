"""Tests of `compilation/disk_cache`."""
