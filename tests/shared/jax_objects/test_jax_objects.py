"""The package as a whole: light to import, and silent where jax is not."""

from __future__ import annotations

from tests.shared.jax_objects.by_value import run

WITHOUT_JAX = """
import json, sys
from jaxd_protocol.jax_objects.decomposition import array_content, decompose
from jaxd_protocol.jax_objects.reducers import reduce_jax
from jaxd_protocol.jax_objects.registrations import class_registration
class Own: pass
found = [decompose(Own()), array_content(Own()), class_registration(Own)]
found.append(reduce_jax(Own()) is NotImplemented)
heavy = {"jax", "jaxlib", "numpy", "importlib.metadata", "flax", "equinox"}
print(json.dumps([found, sorted(heavy & set(sys.modules))]))
"""


def test_nothing_is_imported_where_there_is_nothing_of_jax() -> None:
    """A client that has not imported jax stays a light process."""
    found, loaded = run(WITHOUT_JAX)
    assert found == [None, None, None, True]
    assert loaded == []
