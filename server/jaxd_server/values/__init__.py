"""Arrays that stay on the server: whose they are, how much memory they take.

When they are released, and what calls refer to.
"""
