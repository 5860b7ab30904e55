"""numpy and jax as this process has them, and the array types that stand in for theirs.

Imports jax only where the user has.
"""
