"""The process that owns the devices: its wiring, its status, why it ends."""
