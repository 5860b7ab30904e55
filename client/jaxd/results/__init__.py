"""From reply bytes to Python objects.

Arrays, own classes, own objects, exceptions. Imports and calls nothing because a server says so.
"""
