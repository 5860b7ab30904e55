"""One client's connection.

Reads, schedules and answers its calls, limits what it may hold, and keeps its session over
reconnects.
"""
