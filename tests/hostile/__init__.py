"""A hostile server against a real client, a hostile client against a real server.

Both speak the real protocol past authentication, with generated messages. The oracle is an audit
hook in the victim's process: it stops, and reports, whatever no honest exchange does.
"""
