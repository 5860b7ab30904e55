"""Adapters to what is private in jax: lowered and compiled programs, its disk cache."""
