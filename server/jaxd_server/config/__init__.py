"""What a server was told: the frozen options, and the command line that makes them."""
