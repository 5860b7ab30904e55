"""rpyc's frames over one socket, with bulk data beside the message instead of inside it."""

from __future__ import annotations

from jaxd_protocol.wire.channel import BulkChannel
from jaxd_protocol.wire.connection import BulkConnection, Value
from jaxd_protocol.wire.frames import DEFAULT_MAX_FRAME_BYTES, Frame
from jaxd_protocol.wire.stream import INTERRUPTIBLE_S, BulkStream, stream_over, tune_socket

__all__ = [
    "DEFAULT_MAX_FRAME_BYTES",
    "INTERRUPTIBLE_S",
    "BulkChannel",
    "BulkConnection",
    "BulkStream",
    "Frame",
    "Value",
    "stream_over",
    "tune_socket",
]
