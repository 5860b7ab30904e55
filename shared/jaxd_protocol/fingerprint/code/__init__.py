"""What a code object says of itself.

The names that it reads and how, the callbacks that it passes on.
"""
