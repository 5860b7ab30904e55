"""What users call: persistent functions, their options, and clients of a server."""

from __future__ import annotations
