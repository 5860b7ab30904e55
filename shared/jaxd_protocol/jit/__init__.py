"""How a function is compiled: options, keys, static arguments, transformations.

Also nested calls of persistent functions, and the updates of flax nnx objects.
"""
