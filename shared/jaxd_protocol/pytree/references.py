"""References: what stands in a result for something that is no data, such as a function.

    kind  detail                        what it is on the client
    n     ((mark, number), ...)         an object that a function reaches, by its number there
    c     (content id,)                 a callable that came with an argument
    k     (module, name, content id)    a class; without content id, an installed one
    i     (module, name)                an object of an installed module; without name, the module
    p     (module, name, attribute)     the default of the parameter for the attribute that it is,
                                        of that class, in the client's own class
    m     (reference, name)             a bound method of what the reference leads to
    e     (module, name, content id, member)   a member of an enum
    d     (name,)                       a dtype
    s     (kind, items)                 a set or frozenset of plain values
    o     ()                            nothing that the client could have

Each carries a token as well, by which the server finds its object again when it is sent back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import ProtocolError

_DETAIL_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "n": (tuple,),
    "c": (bytes,),
    "k": (str, str, bytes),
    "i": (str, str),
    "p": (str, str, str),
    "m": (tuple, str),
    "e": (str, str, bytes, str),
    "d": (str,),
    "s": (str, tuple),
    "o": (),
}


class Reference(NamedTuple):
    """One object that stays where it is. A plain tuple on the wire.

    Attributes:
        kind, detail: where the client finds its own; see above.
        token: by which the server knows its object; empty where none is needed.
        about: what it is, for people.
    """

    kind: str
    detail: tuple[Any, ...]
    token: bytes
    about: str

    def plain(self) -> tuple[Any, ...]:
        """A literal."""
        return tuple(self)


def load_reference(value: Any) -> Reference:
    """The reference that a literal stands for.

    Raises:
        ProtocolError: when it stands for none.
    """
    if type(value) is tuple and tuple(map(type, value)) == (str, tuple, bytes, str):
        reference = Reference(*value)
        if tuple(map(type, reference.detail)) == _DETAIL_TYPES.get(reference.kind):
            return reference
    raise ProtocolError("a tree's skeleton has a reference that cannot be read.")


def replace_tokens(
    skeleton: bytes, references: Iterable[Reference], token_of: Callable[[Reference], bytes]
) -> bytes:
    """The skeleton with other tokens in its references, as another process has them.

    Args:
        skeleton: what a process wrote.
        references: those that are in it.
        token_of: the token of the other process, as long as the one that it replaces.
    """
    for reference in references:
        skeleton = _replace_token(skeleton, reference, token_of)
    return skeleton


def _replace_token(
    skeleton: bytes, reference: Reference, token_of: Callable[[Reference], bytes]
) -> bytes:
    if reference.kind == "m":  # what it is bound to has a token of its own
        skeleton = _replace_token(skeleton, load_reference(reference.detail[0]), token_of)
    if not reference.token:
        return skeleton
    # Sixteen random bytes: nothing else in a skeleton looks like them.
    return skeleton.replace(reference.token, token_of(reference))


def function_mark(fingerprint: bytes) -> bytes:
    """Names a function to those who know it: nobody can call a function by its mark."""
    return hashlib.blake2b(fingerprint, digest_size=16, person=b"jaxd references").digest()
