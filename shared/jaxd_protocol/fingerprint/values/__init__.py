"""How each kind of value is counted.

Classes, modules, containers, instances, arrays, environment, flags.
"""
