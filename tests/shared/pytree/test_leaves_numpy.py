from __future__ import annotations

import numpy as np
import pytest

from jaxd_protocol.pytree import Leaf, LeafOffset, parse_skeleton
from jaxd_protocol.pytree.leaves import no_derivative, numpy_leaf, spec_bytes
from tests.shared.pytree.samples import DTYPES


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tag", ["A", "K"])
def test_an_array_is_a_view_of_what_arrived(dtype: np.dtype[np.generic], tag: str) -> None:
    """In the blob or in a buffer, nothing is copied."""
    expected = np.arange(6).astype(dtype).reshape(2, 3)
    leaf, data = Leaf(tag, dtype.name, (2, 3)), expected.tobytes()
    blob, buffer = bytes(16) + data, memoryview(bytearray(data))
    for array in (
        numpy_leaf(leaf, LeafOffset(offset=16), blob, []),
        numpy_leaf(leaf, LeafOffset(buffer=1), b"", [memoryview(b""), buffer]),
    ):
        assert (array.dtype, array.shape) == (dtype, (2, 3))
        assert array.tobytes() == data
        assert array.base is not None


def test_only_a_buffer_of_its_own_is_writable() -> None:
    """The blob belongs to all that lies in it."""
    leaf, buffer = Leaf("A", "uint8", (3,)), memoryview(bytearray(3))
    assert not numpy_leaf(leaf, LeafOffset(offset=0), b"abc", []).flags.writeable
    numpy_leaf(leaf, LeafOffset(buffer=0), b"", [buffer])[:] = 7
    assert bytes(buffer) == b"\7\7\7"


@pytest.mark.parametrize("shape", [(0,), (0, 5), ()])
def test_an_array_may_be_empty_or_have_no_dimensions(shape: tuple[int, ...]) -> None:
    """Also at the very end of the blob."""
    data = bytes(8) if shape == () else b""
    array = numpy_leaf(Leaf("A", "float64", shape), LeafOffset(offset=0), data, [])
    assert array.shape == shape


def test_what_has_no_derivative_has_no_data() -> None:
    """As jax has it, of any shape; it is no leaf."""
    import jax
    import numpy as np

    array = no_derivative((2, 3))
    assert (array.dtype, array.shape, array.nbytes) == (jax.dtypes.float0, (2, 3), 0)
    layout = parse_skeleton(b"T\0\0\0\2F" + spec_bytes("Z", "float0", (2,)), lambda *_: tuple)
    value, nothing = layout.build([1.5])
    assert (value, nothing.dtype, nothing.shape) == (1.5, np.dtype([("float0", "V")]), (2,))
    assert [leaf.tag for leaf in layout.leaves] == ["F"]
