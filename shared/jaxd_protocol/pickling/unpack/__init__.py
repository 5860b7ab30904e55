"""The server's half.

Making modules, classes and functions again, each once per content. Runs only behind
authentication.
"""
