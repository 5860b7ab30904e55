from __future__ import annotations

import jax

from jaxd.tracing.export import without_source_locations


def lowered_here() -> str:
    """A program with all that it says of itself."""
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    return str(lowered.as_text(debug_info=True))


def lowered_there() -> str:
    """The same from other lines."""
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    return str(lowered.as_text(debug_info=True))


def test_a_program_does_not_say_where_it_stood() -> None:
    """Which notices when the name moves in jax: then every edit above a function counts."""
    assert "test_source_locations.py" in lowered_here()
    with without_source_locations():
        here, there = lowered_here(), lowered_there()
    assert "test_source_locations.py" not in here
    assert here == there
