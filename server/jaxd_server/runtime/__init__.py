"""What any process of the server needs of Python and the machine.

Logs, memory, counters, channels.
"""
