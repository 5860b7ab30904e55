"""The commands of `jaxd`, those that belong together in one file.

`SUMMARY`, `EXAMPLE`, `configure(parser)`, `run(args)`.
"""
