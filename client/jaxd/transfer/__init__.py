"""How large data travels: shared memory, deduplication, compression.

Knows leaves and bytes, no calls.
"""
