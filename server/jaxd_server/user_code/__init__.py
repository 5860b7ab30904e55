"""What a client's Python may do in this process while it is traced or called back.

Print, warn, log, mutate, be interrupted.
"""
