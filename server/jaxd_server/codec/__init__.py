"""Wire trees to what jax takes, and results to wire trees.

Also references for objects in results that are no data.
"""
