"""What type checkers see; checked by mypy, never run."""
