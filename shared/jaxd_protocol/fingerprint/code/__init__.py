"""What can be read from a code object.

The names that it reads and how, the callbacks that it passes on.
"""
