"""Runs other people's programs and test suites under jaxd and in plain jax."""
