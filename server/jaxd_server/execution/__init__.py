"""One call.

Admitted, its executable found or ordered, run on the device, its reply made. Read `pipeline.py`
first. Knows no sockets.
"""
