"""Decodes replies: arrays, classes and objects of the client, exceptions.

Imports and calls nothing because a server says so.
"""
