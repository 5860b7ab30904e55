"""How each kind of value is counted.

Classes, modules, instances, arrays, settings of the process.
"""
