"""Runs other people's programs and test suites under jaxd and under plain jax, and compares them."""
