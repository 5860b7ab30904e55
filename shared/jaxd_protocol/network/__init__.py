"""Where a server is and who may speak with it.

Addresses, local files, tokens, certificates, the handshake: all before a byte is unpickled.
"""
