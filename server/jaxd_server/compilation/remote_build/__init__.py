"""The worker's end of the builder process."""
