"""The process that authenticates clients where each principal has a worker of its own.

It hands their connections over to these workers.
"""
