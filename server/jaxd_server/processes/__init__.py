"""The processes of a server: host, supervision, gateway, worker, tracer.

Only here are processes started and wired.
"""
