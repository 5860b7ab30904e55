"""Arrays that stay on the server, as this process manages them.

Fetch, put, release, and calls on them, which are pipelined in order and never run twice.
"""
