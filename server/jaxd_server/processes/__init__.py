"""The processes of a server.

The host and what it needs to supervise workers, the gateway, the worker and its wiring, the
tracer. Only here are processes started and wired.
"""
