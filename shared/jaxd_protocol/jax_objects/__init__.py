"""Objects of jax itself: how they are hashed, how they travel, and how classes are registered.

The one place for private names of jax, and for those of the libraries whose classes need more
than Python's own class machinery. None of it imports jax where jax is not loaded already, apart
from the functions that make an object again, which run where one arrives.
"""
