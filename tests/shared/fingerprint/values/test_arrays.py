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

from jaxd_protocol.fingerprint.guards import ARRAY_LIMIT
from jaxd_protocol.fingerprint.values import arrays
from tests.shared.fingerprint.defining import digest_of, function, walk_of


def whole() -> Any:
    return np.arange(6, dtype=np.int32)


def test_a_file_in_memory_counts_by_what_is_in_it(tmp_path: Path) -> None:
    """As an array of its own kind would."""

    def mapped(text: bytes) -> bytes:
        (tmp_path / "a").write_bytes(text)
        return digest_of(np.memmap(tmp_path / "a", np.uint8, "r"))

    assert mapped(b"one") == mapped(b"one") != mapped(b"two")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ml_dtypes.bfloat16(1), np.float16(1)),
        (np.dtype("f4"), np.float32),
        (np.dtype("V2"), np.dtype(ml_dtypes.bfloat16)),
    ],
    ids=str,
)
def test_scalars_dtypes_and_ufuncs_are_told_apart(one: Any, other: Any) -> None:
    """From each other and from Python's."""
    assert digest_of([one]) == digest_of([one]) != digest_of([other])


def frozen(length: int) -> Any:
    array = np.zeros(length, np.uint8)
    array.flags.writeable = False
    return array


def test_a_change_in_place_is_noticed_where_there_can_be_one() -> None:
    """A large array that was made so that it cannot be written to is not looked at."""
    array, large = np.zeros(4), frozen(ARRAY_LIMIT + 1)
    guards = walk_of([array, large]).guards
    assert list(guards._arrays) == [id(array)]
    assert guards.complete
    array[0] = 1
    assert not guards.hold()


@pytest.mark.parametrize("length", [4, ARRAY_LIMIT])
def test_a_read_only_array_that_is_written_to_for_a_moment_has_changed(length: int) -> None:
    """By whoever makes it writeable, and read-only again."""
    array = frozen(length)
    guards = walk_of([array]).guards
    assert guards.hold()
    array.flags.writeable = True
    array[0] = 1
    array.flags.writeable = False
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
