"""Loaded by Python at the start of each process of a corpus run, so that no program is changed.

`CORPUS_MODE` says what the process is: `jaxd` (a program whose `jax.jit` is `persistent_call`),
`plain` (the same program in plain jax), or `count` (a process of the server, which only counts).
"""

import os

if os.environ.get("CORPUS_MODE"):
    from importlib import import_module  # from the folder beside this file

    import_module("corpus_inside").begin(os.environ["CORPUS_MODE"], os.environ["CORPUS_RECORDS"])
