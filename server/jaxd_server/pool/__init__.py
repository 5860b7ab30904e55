"""Several servers as one pool: the director that clients ask, and the members that Ray places."""
