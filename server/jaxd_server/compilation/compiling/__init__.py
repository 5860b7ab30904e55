"""Tracing, lowering and compiling, once per key, as long as somebody waits."""
