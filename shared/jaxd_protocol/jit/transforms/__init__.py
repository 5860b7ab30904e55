"""What a function is transformed by: how that is written in a key, and how it is done.

A list of transformations is part of a function's options, so that each list has a key of its own
over the fingerprint of the one function. Nothing here imports jax until a function is called.
"""

from __future__ import annotations

from jaxd_protocol.jit.transforms.apply import Transformed as Transformed
from jaxd_protocol.jit.transforms.apply import transformed as transformed
from jaxd_protocol.jit.transforms.apply import untransformed as untransformed
from jaxd_protocol.jit.transforms.literal import NotSpelled as NotSpelled
from jaxd_protocol.jit.transforms.literal import Transformation as Transformation
from jaxd_protocol.jit.transforms.literal import options_of as options_of
from jaxd_protocol.jit.transforms.literal import shown as shown
from jaxd_protocol.jit.transforms.literal import shown_name as shown_name
from jaxd_protocol.jit.transforms.literal import transformation as transformation
