"""What a fingerprint must change with, and what it must not: the case tables."""
