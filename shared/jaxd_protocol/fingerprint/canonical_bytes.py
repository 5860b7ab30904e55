"""Values as bytes that no two different values share: each with its type, each with its length."""

from __future__ import annotations

from hashlib import blake2b
from types import CodeType, NotImplementedType
from typing import Any, Final

from jaxd_protocol.pytree.literals import ATOM_TYPES, dump_literal

DIGEST_SIZE: Final = 16


def digest(data: bytes | bytearray | memoryview) -> bytes:
    """Sixteen bytes: BLAKE2b."""
    return blake2b(data, digest_size=DIGEST_SIZE).digest()


def tag(name: str) -> bytes:
    """The name of a kind of thing."""
    return b"<%s>" % name.encode()


ATOMS: Final = ATOM_TYPES | {NotImplementedType}
"""Types whose instances are nothing but their value; subclasses are more than that."""


def atom(value: Any) -> bytes | None:
    """The bytes of an instance of one of `ATOMS`, None for anything else."""
    if type(value) not in ATOMS:
        return None
    return b"!" if value is NotImplemented else dump_literal(value)


def is_same(now: Any, then: Any) -> bool:
    """Whether two plain values count alike, which `==` does not say: it takes 1 for True.

    Of arrays and scalars of numpy, type, shape and bytes decide. Other objects are the same when
    they are one.
    """
    kind = type(now)
    if now is then or kind is not type(then):
        return now is then
    if kind in ATOMS:
        return atom(now) == atom(then)
    if kind is list or kind is tuple:
        return len(now) == len(then) and all(map(is_same, now, then))
    if kind is dict:
        return is_same([*now.items()], [*then.items()])
    if kind is set or kind is frozenset:
        atoms = set(map(atom, now))
        return None not in atoms and atoms == set(map(atom, then))
    if kind.__module__ != "numpy" or not hasattr(now, "tobytes"):
        return False
    form = now.shape, now.dtype, now.tobytes()
    return bool(form == (then.shape, then.dtype, then.tobytes()))


def constant(value: Any, code: Any) -> bytes:
    """The bytes of a constant of a code object.

    Args:
        value: the constant.
        code: gives the digest of a code object among the constants.

    Raises:
        TypeError: for what the compiler never makes a constant of.
    """
    simple = atom(value)
    if simple is not None:
        return simple
    kind = type(value)
    if kind is tuple:
        return b"(%d:" % len(value) + b"".join([constant(item, code) for item in value])
    if kind is frozenset:
        items = sorted(digest(constant(item, code)) for item in value)
        return b"z%d" % len(items) + b"".join(items)
    if kind is slice:
        parts = (value.start, value.stop, value.step)
        return b"S" + b"".join([constant(part, code) for part in parts])
    if kind is CodeType:
        inner: bytes = code(value)
        return b"K" + inner
    raise TypeError(f"{kind.__name__} is not a constant")
