"""Connections to servers: settings, discovery, dialling, handshake, replies.

One rpyc connection is shared by many threads.
"""
