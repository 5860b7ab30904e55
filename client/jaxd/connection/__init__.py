"""From an address to replies.

Settings, discovery, dialling, handshake, one rpyc connection shared by many threads.
"""
