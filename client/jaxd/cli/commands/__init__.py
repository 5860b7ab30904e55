"""The commands of `jaxd`, one file each.

`SUMMARY`, `EXAMPLE`, `configure(parser)`, `run(args)`.
"""
