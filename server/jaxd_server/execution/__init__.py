"""Executes one call: admission, its executable, the run on the device, the reply.

Read `pipeline.py` first. Knows no sockets.
"""
