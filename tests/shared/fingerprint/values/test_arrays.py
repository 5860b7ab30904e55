"""Arrays, by their whole content."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxd_protocol.fingerprint.values import arrays
from tests.shared.fingerprint.defining import digest_of, function, walk_of


def whole() -> Any:
    """Six numbers."""
    return np.arange(6, dtype=np.int32)


@pytest.mark.parametrize(
    "other",
    [
        whole().reshape(2, 3),
        whole().astype(np.int64),
        whole().astype(">i4"),
        whole().view(np.float32),
        whole()[::-1],
        whole()[:5],
        np.array([0, 1, 2, 3, 4, 6], np.int32),
        jnp.arange(6, dtype=jnp.int32),
        list(range(6)),
        np.ma.masked_array(whole()),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_two_arrays_have_two_digests(other: Any) -> None:
    """By dtype, shape, bytes and kind."""
    assert digest_of(other) != digest_of(whole())


@pytest.mark.parametrize(
    "same",
    [
        whole().copy(),
        np.arange(12, dtype=np.int32)[:6],
        np.arange(-6, 6, dtype=np.int32)[6:],
        np.repeat(whole(), 2)[::2],
    ],
)
def test_how_an_array_lies_in_memory_does_not_count(same: Any) -> None:
    """A view, a part, one with gaps."""
    assert digest_of(same) == digest_of(whole())


def test_order_in_memory_does_not_count() -> None:
    """Columns first or rows first."""
    array = np.arange(6.0).reshape(2, 3)
    assert digest_of(array) == digest_of(np.asfortranarray(array))


def test_a_file_in_memory_counts_by_what_is_in_it(tmp_path: Path) -> None:
    """As an array of its own kind would."""

    def mapped(text: bytes) -> bytes:
        (tmp_path / "a").write_bytes(text)
        return digest_of(np.memmap(tmp_path / "a", np.uint8, "r"))

    assert mapped(b"one") == mapped(b"one") != mapped(b"two")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.float32(1), np.float32(2)),
        (np.float32(1), np.float64(1)),
        (np.float32(1), 1.0),
        (np.bool_(True), True),
        (np.float32(1), np.array(1, np.float32)),
        (ml_dtypes.bfloat16(1), np.float16(1)),
        (np.dtype("f4"), np.dtype("f8")),
        (np.dtype("f4"), np.dtype(">f4")),
        (np.dtype("f4"), np.float32),
        (np.dtype([("a", "f4")]), np.dtype([("b", "f4")])),
        (np.dtype("V2"), np.dtype(ml_dtypes.bfloat16)),
        (np.add, np.subtract),
    ],
    ids=str,
)
def test_scalars_dtypes_and_ufuncs_are_told_apart(one: Any, other: Any) -> None:
    """From each other and from Python's."""
    assert digest_of([one]) == digest_of([one]) != digest_of([other])


def test_objects_in_an_array_count_one_by_one() -> None:
    """Their addresses do not."""
    one, same, other = (np.array([1, [last]], dtype=object) for last in (2, 2, 3))
    assert digest_of(one) == digest_of(same) != digest_of(other)


def test_a_change_in_place_is_noticed_where_there_can_be_one() -> None:
    """An array that cannot be written to is not copied for it."""
    array, frozen = np.zeros(4), np.zeros(4)
    frozen.flags.writeable = False
    guards = walk_of([array, frozen]).guards
    assert list(guards._arrays) == [id(array)]
    array[0] = 1
    assert not guards.hold()


def test_the_part_shows_dtype_and_shape() -> None:
    """A scalar shows its value."""
    made = function("return A, S, J", A=np.zeros((3, 4)), S=np.int8(7), J=jnp.zeros(2))
    shown = {part.name: part.shown for part in walk_of(made).fingerprint.parts}
    assert shown["global A"] == "float64[3,4]"
    assert "7" in shown["global S"]
    assert shown["global J"] == "float32[2]"


def test_arrays_of_jax_count_by_content_and_weak_type() -> None:
    """A weak type decides about the dtype of results."""
    assert digest_of(jnp.zeros(3)) == digest_of(jnp.zeros(3)) != digest_of(jnp.ones(3))
    weak = jnp.asarray(1.0)
    strong = jnp.asarray(1.0, jnp.float32)
    assert weak.weak_type
    assert digest_of(weak) != digest_of(strong)


def test_keys_of_jax_count_by_their_bits_and_kind() -> None:
    """Two kinds of generators have nothing in common."""
    keys = [jax.random.key(0), jax.random.key(1), jax.random.key(0, impl="rbg")]
    assert len({digest_of(key) for key in keys}) == 3
    assert digest_of(jax.random.key(0)) == digest_of(keys[0])


def test_an_array_of_jax_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never changes; the note about it does not outlive it."""
    array = jnp.arange(5.0)
    before = digest_of(array)
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "array_content", lambda value: 1 / 0)
        assert digest_of(array) == before
    number = id(array)
    del array
    gc.collect()
    assert number not in arrays._jax_contents._known


def test_a_digest_is_not_taken_for_another_array() -> None:
    """One that got the address of one that is gone."""
    found = {digest_of(jnp.full(3, number)) for number in range(20)}
    assert len(found) == 20
