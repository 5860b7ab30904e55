"""absl's command line flags: those that a function reads are in the key, and carried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.model import Steps
from jaxd_protocol.fingerprint.walk import Walk


class ReadFlags(SimpleNamespace):
    """The flags that a function reads, as its client had them. Stands for `absl.flags.FLAGS`."""

    def __getitem__(self, name: str) -> Any:
        """As in absl, where it gives the flag object: here something with its `value`."""
        return SimpleNamespace(value=getattr(self, name), name=name)


def is_flags(value: Any) -> bool:
    """Whether this is absl's registry of flags, or what stands for it on a server."""
    kind = type(value)
    return kind is ReadFlags or (
        kind.__name__ == "FlagValues" and kind.__module__ == "absl.flags._flagvalues"
    )


def emit_flag(walk: Walk, flags: Any, kind: str, name: Any, rest: Steps) -> tuple[Any, Steps]:
    """The value of one flag, read as `FLAGS.name` or `FLAGS['name'].value`.

    Raises:
        PackingError: when it cannot be seen which flag is read.
    """
    if kind == "i" and rest[:1] == (("a", "value"),):
        rest = rest[1:]
    elif kind != "a" or name.startswith("_"):
        refuse_whole(walk)
    value = getattr(flags, name)
    walk.guards.answer(lambda: getattr(flags, name), value)
    kept = walk.reach.replacements.setdefault(id(flags), ReadFlags())
    setattr(kept, name, value)
    walk.label += f".{name}"
    return value, rest


def refuse_whole(walk: Walk) -> NoReturn:
    """For code that hands the whole registry on."""
    raise PackingError(
        f"{walk.path()} uses absl's flags as a whole ({walk.where}), so every flag would be part "
        "of the key. Read single ones, as in FLAGS.name, or pass their values as arguments."
    )
