"""Everything that parses bytes of another process or a file, given bytes that nobody would send."""
