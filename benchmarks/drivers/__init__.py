"""Processes that measure one variant each, so that no two share an interpreter."""
