"""Encodes a function and its arguments as the bytes of a call request.

The snapshot of the function as it is now, the encoded arguments, the `CallRequest`. Opens no
connection.
"""
