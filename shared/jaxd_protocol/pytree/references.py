"""References: they stand in a result for objects that are no data, such as functions.

    kind  detail                        what it is on the client
    n     ((mark, number), ...)         an object that a function reaches, by its number there
    c     (content id,)                 a callable that an argument held
    k     (module, name, content id)    a class; without content id, an installed one
    i     (module, name)                an object of an installed module; without name, the module
    p     (module, name, attribute)     the default of the parameter for the attribute that it is,
                                        of that class, in the client's own class
    m     (reference, name)             a bound method of what the reference leads to
    e     (module, name, content id, member)   a member of an enum
    d     (name,)                       a dtype
    v     (kind, parts)                 a value that is nothing but data, see `data_values`
    o     ()                            an object that the client cannot have

Each holds a token as well, by which the server finds its object when it is sent back.
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
    "v": (str, tuple),
    "o": (),
}


class Reference(NamedTuple):
    """A reference to one object of the server. A plain tuple on the wire.

    Attributes:
        kind, detail: where the client finds its own object; see above.
        token: identifies the server's object; empty where none is needed.
        about: a description for people.
    """

    kind: str
    detail: tuple[Any, ...]
    token: bytes
    about: str

    def plain(self) -> tuple[Any, ...]:
        """A literal."""
        return tuple(self)


def load_reference(value: Any) -> Reference:
    """The reference in a literal.

    Raises:
        ProtocolError: when there is none.
    """
    if type(value) is tuple and tuple(map(type, value)) == (str, tuple, bytes, str):
        reference = Reference(*value)
        if tuple(map(type, reference.detail)) == _DETAIL_TYPES.get(reference.kind):
            return reference
    raise ProtocolError("a tree's skeleton has a reference that cannot be read.")


def replace_tokens(
    skeleton: bytes, references: Iterable[Reference], token_of: Callable[[Reference], bytes]
) -> bytes:
    """The skeleton with the tokens of another process in its references.

    Args:
        skeleton: as the first process wrote it.
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
    # Sixteen random bytes, which occur nowhere else in a skeleton.
    return skeleton.replace(reference.token, token_of(reference))


def function_mark(fingerprint: bytes) -> bytes:
    """Identifies a function to clients that have it; a function cannot be called by its mark."""
    return hashlib.blake2b(fingerprint, digest_size=16, person=b"jaxd references").digest()
