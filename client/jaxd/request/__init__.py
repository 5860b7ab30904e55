"""From a function and its arguments to bytes.

The fingerprint of the function as it is now, the encoded arguments, the `CallRequest`. Opens no
connection.
"""
