"""Decodes arguments to what jax takes, and encodes results.

Also references for objects in results that are no data.
"""
