"""The dashboard: what there is to see of a server, in a browser, served by a client of it."""
