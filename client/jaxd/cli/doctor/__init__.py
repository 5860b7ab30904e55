"""The checks of `jaxd doctor`: small, one subject each, read-only."""
