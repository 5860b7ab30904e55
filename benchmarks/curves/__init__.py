"""What a call costs as the work grows: a curve for each thing that there may be more of."""

from __future__ import annotations

from typing import Final

from benchmarks.curves.curve import Curve
from benchmarks.curves.growth import CLIENTS, FUNCTIONS, VALUES
from benchmarks.curves.payload import BYTES, LEAVES

CURVES: Final[tuple[Curve, ...]] = (CLIENTS, FUNCTIONS, LEAVES, VALUES, BYTES)
