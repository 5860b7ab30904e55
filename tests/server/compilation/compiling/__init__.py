"""Tests of `compilation/compiling`."""
