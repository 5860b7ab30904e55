"""Mutants of the product: what the tests do not catch when a line is wrong.

`python -m tests.mutants draw` writes a list of them, `reach` finds which tests run these lines, in
this process and in servers, and `run` tries each against its tests.
"""
