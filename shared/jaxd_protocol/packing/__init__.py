"""Functions and objects to bytes and back.

Installed code is named, local code travels by value (see `installed`). Only servers unpack, and
only what an authenticated client sent.
"""

from jaxd_protocol.packing.arguments import pack, pack_out_of_band
from jaxd_protocol.packing.content_ids import id_of
from jaxd_protocol.packing.packed import Packed, pack_function
from jaxd_protocol.packing.unpickler import Unpacked, unpack, unpack_function

__all__ = [
    "Packed",
    "Unpacked",
    "id_of",
    "pack",
    "pack_function",
    "pack_out_of_band",
    "unpack",
    "unpack_function",
]
