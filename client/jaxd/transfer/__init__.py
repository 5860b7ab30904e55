"""How large data travels.

Shared memory, deduplication, compression. Knows leaves and bytes, no calls.
"""
