"""Functions and objects to bytes and back.

Installed code is named, local code travels by value (see `installed`). Only servers unpack, and
only what an authenticated client sent.
"""
