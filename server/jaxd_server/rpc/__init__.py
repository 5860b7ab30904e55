"""Serves one client's connection: reads, schedules and answers its calls.

Limits what the client may hold, and keeps its session over reconnects.
"""
