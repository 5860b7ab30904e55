"""The process that owns the devices.

Wiring of all parts, its status, and why it ends by itself.
"""
