"""What can be switched off, to show that the generator finds what it is there for.

Each name stands for a mechanism of the product. What takes its place stands here, and is put there
from outside, in the processes of a run only: the product has no such option.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple


class Patch(NamedTuple):
    """What takes the place of something.

    Attributes:
        ends: `client`, `server` or both.
        module, name: where it is; a name may go through a class.
        make: the replacement, from what was there.
    """

    ends: tuple[str, ...]
    module: str
    name: str
    make: Callable[[Any], Any]


BOTH: Final = ("client", "server")
_VALUES: Final = "jaxd_protocol.fingerprint.values"
_SETTINGS: Final = f"{_VALUES}.settings"


def _nothing(before: Any) -> Any:
    return lambda *args, **kwargs: None


def _without_digest(before: Any) -> Any:
    return lambda code: before(code)._replace(digest=b"")


def _without_reads(before: Any) -> Any:
    return lambda fingerprint, reads: fingerprint


def _holds(before: Any) -> Any:
    return lambda self: True


def _always(before: Any) -> Any:
    return lambda cls: True


def _no_changes(before: Any) -> Any:
    return lambda *args: []


SWITCHES: Final[Mapping[str, tuple[Patch, ...]]] = {
    "reads": (  # what is read of the process counts, and is looked at before each call
        Patch(BOTH, _SETTINGS, "emit_value", _nothing),
        Patch(BOTH, _SETTINGS, "emit_process", _nothing),
        Patch(
            BOTH, "jaxd_protocol.messages.recorded_reads", "recorded_fingerprint", _without_reads
        ),
    ),
    "guards": (Patch(("client",), "jaxd_protocol.fingerprint.guards", "Guards.hold", _holds),),
    "unwatched": (  # what guards do not see is looked at each time
        Patch(("client",), "jaxd_protocol.fingerprint.guards", "has_no_hidden_state", _always),
        Patch(("client",), f"{_VALUES}.instances", "has_no_hidden_state", _always),
    ),
    "packages": (  # a worker is replaced when a package that it has imported changes
        Patch(
            ("server",),
            "jaxd_server.runtime.imported_packages",
            "ImportedPackages.changes",
            _no_changes,
        ),
    ),
    "registrations": (
        Patch(BOTH, "jaxd_protocol.jax_objects.registrations", "class_registration", _nothing),
    ),
    "sources": (  # a module that is imported late counts by its source
        Patch(BOTH, "jaxd_protocol.fingerprint.local_imports", "facts_of", _without_digest),
    ),
}
"""By mechanism."""


def switch_off(mechanism: str, end: str) -> None:
    """Takes a mechanism out of this process."""
    for patch in SWITCHES[mechanism]:
        if end in patch.ends:
            owner: Any = importlib.import_module(patch.module)
            *path, last = patch.name.split(".")
            for part in path:
                owner = getattr(owner, part)
            setattr(owner, last, patch.make(getattr(owner, last)))
