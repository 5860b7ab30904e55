"""The options of a server, and the command line that makes them."""
