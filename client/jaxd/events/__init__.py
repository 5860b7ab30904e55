"""What a server says while a call is open.

Progress, output, warnings, and callbacks that run here.
"""
