"""From function and signature to executable: the table, the builder, programs, eviction."""
