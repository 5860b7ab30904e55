"""How a function is compiled.

Options, keys, static arguments, transformations, nested calls, nnx updates.
"""
