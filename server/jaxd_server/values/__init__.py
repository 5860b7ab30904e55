"""Arrays that stay here.

Whose they are, how much room they take, when they go, and what calls refer to.
"""
