"""Decodes replies: arrays, classes and objects of the client, exceptions.

Imports and calls nothing at the will of a server.
"""
