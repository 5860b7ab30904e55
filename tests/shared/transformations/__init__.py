"""Tests of trees as flat data."""
