"""Memory, compression, the machine, terminals: needs nothing of jaxd but its errors."""
