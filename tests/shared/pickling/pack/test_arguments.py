"""Arguments to bytes: data, with the code in it by its content."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import jax
import pytest

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import content_id
from jaxd_protocol.pickling.pack import arguments, functions
from jaxd_protocol.pickling.pack.arguments import pack, pack_out_of_band
from jaxd_protocol.pickling.unpack.archives import content_id_of
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.shared.fingerprint.defining import define

optax = pytest.importorskip("optax")
linen = pytest.importorskip("flax.linen")

STREAM = (number for number in [1])


def test_an_argument_that_cannot_travel_is_named() -> None:
    """Just as well."""
    with pytest.raises(PackingError, match=r"dict\['stream'\] is a generator"):
        pack({"stream": STREAM}, "an argument")


def test_what_is_not_contiguous_travels_in_the_bytes() -> None:
    """There is no one piece of memory to point at."""

    class Strided:
        def __reduce_ex__(self, protocol: Any) -> Any:
            return bytearray, (pickle.PickleBuffer(memoryview(b"abcdef")[::2]),)

    with pytest.raises(PackingError):
        pack_out_of_band(Strided(), "it")


def scaled(x: Any) -> Any:
    return x * 2


def test_a_callable_of_an_argument_is_the_same_object_in_each_call() -> None:
    """Functions, methods, partials, jitted ones, and those that a library has made."""
    values = [
        scaled,
        functools.partial(scaled, 3),
        jax.jit(scaled),
        optax.sgd(0.1).update,
        linen.Dense(3).apply,
    ]
    for value in values:
        first, second = (unpack(pack({"it": value}, "it"))["it"] for _ in range(2))
        assert first is second
        assert first is not value
        assert content_id_of(first) is not None


def test_the_client_finds_its_own_callable_again() -> None:
    """By the id that the server has for it."""
    functions = pack([scaled], "it")
    (arrived,) = unpack(functions)
    name = content_id_of(arrived)
    assert name is not None
    assert functions.objects[name] is scaled


def test_a_callable_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call only looks it up."""

    def mine() -> int:
        return 1

    first = pack([mine], "it")
    monkeypatch.setattr(arguments, "pack_function", None)
    assert pack([mine], "it") == first


class Gauge:
    unit = "m"


def gauge() -> Gauge:
    return Gauge()


def test_a_class_that_comes_with_a_function_is_not_packed_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is there then, and the same one; where it comes first it is packed for itself."""
    packed: list[Any] = []
    plainly = functions.pack_function

    def pack_function(value: Any, *given: Any) -> Any:
        packed.append(value)
        return plainly(value, *given)

    monkeypatch.setattr(arguments, "pack_function", pack_function)
    monkeypatch.setattr(arguments, "_packed_callables", BoundedDict(8))
    function, held = unpack(pack([gauge, Gauge()], "it"))
    assert packed == [gauge]
    assert type(function()) is type(held) is not Gauge
    assert type(unpack(pack([Gauge(), gauge], "it"))[0]) is type(held)
    assert packed == [gauge, Gauge]


LEVEL = 1


def leveled() -> int:
    return LEVEL


def test_a_callable_that_has_changed_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that it reads is not what it was."""
    first = unpack(pack(leveled, "it"))
    monkeypatch.setitem(globals(), "LEVEL", 2)
    second = unpack(pack(leveled, "it"))
    assert (first(), second()) == (1, 2)


def changing(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """While something is packed, another thread changes what it reads, so many times."""
    changes: list[int] = []
    plainly = functions.pack_function

    def pack_function(*given: Any) -> Any:
        if len(changes) < times:
            changes.append(len(changes))
            monkeypatch.setitem(globals(), "LEVEL", 100 + len(changes))
        return plainly(*given)

    monkeypatch.setattr(arguments, "pack_function", pack_function)
    monkeypatch.setattr(arguments, "_packed_callables", BoundedDict(8))
    return changes


def test_what_changes_while_it_is_packed_is_not_taken_for_what_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The id says what was packed, else others who name it would get something else."""
    before = content_id(leveled)
    assert changing(monkeypatch, 1) == []
    found = pack([leveled], "it")
    assert unpack(found)[0]() == 101
    assert list(found.objects) == [content_id(leveled)] != [before]


def test_what_changes_all_the_time_cannot_be_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do."""
    changing(monkeypatch, 1000)
    with pytest.raises(PackingError, match="before the call"):
        pack_out_of_band([leveled], "it")


def test_the_same_callable_of_two_clients_is_one_on_the_server() -> None:
    """However it is commented, and whatever else its module holds."""
    text = "{comment}\nimport math\nRATE = 2\ndef f(x):\n    return x * RATE\n"
    comments = ("# one", "# two\n\n# lines\nMORE = 1")
    made = [define(text.format(comment=comment), "mine").f for comment in comments]
    first, second = (unpack(pack([each], "it"))[0] for each in made)
    assert first is second
    assert first(1) == 2
