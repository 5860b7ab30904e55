"""The processes of a server: host, supervision, gateway, worker, builder.

Only here are processes started and wired, also what one without a server uses (`without_server`).
"""
