"""The processes of a server: host, supervision, gateway, worker, builder.

Only here are processes started and wired.
"""
