"""Valid messages about a function and a call, seeds of several targets."""

from __future__ import annotations

import numpy as np

from jaxd_protocol.fingerprint import Part
from jaxd_protocol.messages.function_manifest import FunctionManifest
from tests.shared.pytree import samples

MANIFEST = FunctionManifest(
    b"f" * 16,
    b"salt",
    (Part("function", "f", b"d" * 16, "shown", "f.py:1"),),
    {},
    {"f": True},
    frozenset(["g"]),
    (),
    True,
).to_message()
RESULT = samples.encode([np.arange(3), {"a": (np.zeros((2, 2), np.float32), None)}]).skeleton
SKELETON = samples.encode(((1.0, np.arange(3)), {})).skeleton
