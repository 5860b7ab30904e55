"""Every private name of jax that the server uses, with what happens when it has moved."""
