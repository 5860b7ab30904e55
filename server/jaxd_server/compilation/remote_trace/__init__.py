"""The worker's end of the tracer process."""
