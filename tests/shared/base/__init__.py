"""Tests of what needs nothing of jaxd but its errors."""
