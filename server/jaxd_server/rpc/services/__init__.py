"""What clients ask beside calls, a file for each group of verbs; the types of what they send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jaxd_protocol.errors import ProtocolError

_Types = tuple[type, ...]

VALUE_VERBS: Final[Mapping[str, tuple[_Types, ...]]] = {
    "put": ((int, bytes, bytes, bytes, tuple), (int, bytes, bytes, bytes, tuple, bytes)),
    "fetch": ((bytes, bytes),),
    "part": ((int, tuple, int, int),),
    "name": ((str, bytes, bytes, type(None)), (str, bytes, bytes, float)),
    "named": ((str, int),),
    "unname": ((str,),),
    "values": ((),),
    "offer": ((bytes,),),
    "take": ((str, str, tuple, bytes),),
    "hold": ((str, int, bytes),),
    "held": ((str, int, bytes),),
}
"""For `ValueService`; for each verb, the types that its arguments may have."""

CHECKPOINT_VERBS: Final[Mapping[str, tuple[_Types, ...]]] = {
    "save": ((str, str, str, bytes, bool),),
    "saved": ((str, str),),
    "restore": ((str, str, int, str), (str, str, int, str, bytes)),
}
"""The same for `CheckpointService`."""

SERVICE_VERBS: Final[Mapping[str, tuple[_Types, ...]]] = {
    **VALUE_VERBS,
    **CHECKPOINT_VERBS,
    "functions": ((),),
    "recipes": ((str,),),
    "forget": ((bytes,),),
    "why": ((bytes, bytes, tuple), (bytes, type(None), tuple)),
    "recent": ((int,),),
    "report": ((),),
    "view": ((int, str),),
    "detail": ((bytes, str, str),),
    "cancel_call": ((str,),),
    "stages": ((bytes, bytes, str, str, bool),),
    "program": ((bytes, bytes, int),),
    "ready": ((bytes, bytes, bytes),),
    "compile": ((str, bytes),),
    "profile": ((str, int),),
    "traced": ((bytes,),),
}
"""The same for `AdminService`, `Stages` and `ProgramService` as well."""


def check_arguments(verb: str, args: tuple[Any, ...]) -> None:
    """Returns when the arguments of one of these verbs have the right types.

    Raises:
        ProtocolError: when they have others.
    """
    if tuple(map(type, args)) not in SERVICE_VERBS[verb]:
        raise ProtocolError(f"the arguments of {verb!r} are not those that it takes.")
