"""Functions and objects to bytes and back."""
