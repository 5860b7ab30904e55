"""Clients of all kinds for a long time, while everything around them breaks; see `make soak`."""
