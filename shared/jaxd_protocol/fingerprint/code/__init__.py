"""What a code object says of itself.

Instructions, the names it reads, the callbacks it passes on.
"""
