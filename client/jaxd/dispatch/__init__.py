"""Makes one call: sessions, synchronous and asynchronous calls, retries, warming.

The only place that decides when a call is sent again.
"""
