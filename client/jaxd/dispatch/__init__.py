"""One call from request to result.

Sessions, sync and async calls, retries, warming. The only place that decides when a call is sent
again.
"""
