"""Tests of `processes/tenants`."""
