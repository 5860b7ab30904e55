"""Tracing, lowering and compiling, once per key, as long as a call waits."""
