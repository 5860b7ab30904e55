"""Behaviours of client and server together, over real sockets and in real processes."""
