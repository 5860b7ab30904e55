"""Adapters to what is private in jax: arrays, lowered and compiled programs, its disk cache."""
