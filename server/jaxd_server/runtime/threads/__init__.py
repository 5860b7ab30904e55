"""Executors, fairness, cancellation, single flight. No jaxd vocabulary."""
