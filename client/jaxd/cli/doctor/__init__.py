"""What `jaxd doctor` looks at: small checks, each of one thing. They read, and change nothing."""
