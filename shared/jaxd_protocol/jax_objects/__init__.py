"""What jaxd knows of jax's own objects: how to hash them, how they travel, how classes do.

The one place for private names of jax, and for those of the libraries whose classes need more
than Python's own class machinery. None of it imports jax where jax is not loaded already, apart
from the functions that make an object again, which run where one arrives.
"""
