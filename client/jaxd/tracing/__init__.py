"""The ways of a call in which the client's own jax takes part.

A tracer among the arguments, `JAXD_INLINE=1`, and servers that take exported programs only.
"""
