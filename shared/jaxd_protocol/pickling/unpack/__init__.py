"""The server's half: modules, classes and functions are made again, once per content.

Runs only behind authentication.
"""
