"""Lists what is in a cache folder, for people. Nothing that is kept is run or unpickled."""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.explain.argument_shapes import argument_shapes
from jaxd_server.cache.directory import TARGET_FILE, VERSION, Directory
from jaxd_server.cache.disk_usage import Entry, entries
from jaxd_server.cache.record_file import InvalidRecord, read_header


@dataclass(slots=True)
class CachedCall:
    """A function with one signature, as it lies on disk.

    What its record does not contain, or has in the form of another version, is empty.

    Attributes:
        record: the name of its record, in hex digits.
        key: of the function, in hex digits.
        program: the name of its program, in hex digits.
        target: the digest of what it is good for.
        name: the name of the function.
        arguments: what each argument looks like, by its name.
        trace_s: seconds that tracing took.
        compile_s: seconds that compiling took.
        created: when it was built, in seconds since 1970.
        last_use: when it was used last, in seconds since 1970.
        bytes: room that it takes on disk, its program included.
        principal: for whom it was built.
        obstacle: why its program is not on disk.
        shared_with: the records of other calls with the same program.
    """

    record: str
    key: str
    program: str
    target: str
    name: str
    arguments: Mapping[str, str]
    trace_s: float
    compile_s: float
    created: float
    last_use: float
    bytes: int
    principal: str
    obstacle: str
    shared_with: tuple[str, ...] = ()

    @property
    def build_s(self) -> float:
        """Seconds that it took to build."""
        return self.trace_s + self.compile_s


def cached_calls(root: str) -> list[CachedCall]:
    """All calls in a cache folder, the one used last first; broken files are left out."""
    found = list(entries(root))
    sizes = {entry.path: entry.bytes for entry in found}
    calls = [call for entry in found if entry.kind == "calls" for call in _read(entry, sizes)]
    sharing: dict[tuple[str, str], list[str]] = defaultdict(list)
    for call in calls:
        sharing[call.target, call.program].append(call.record)
    for call in calls:
        others = sharing[call.target, call.program]
        call.shared_with = tuple(other for other in others if other != call.record)
    return sorted(calls, key=lambda call: -call.last_use)


def _read(entry: Entry, sizes: Mapping[str, int]) -> Iterator[CachedCall]:
    try:
        header = read_header(entry.path)
    except (InvalidRecord, OSError):
        return
    fields = _Fields(header.content)
    program = fields.digits("program")
    yield CachedCall(
        record=header.name.hex(),
        key=fields.digits("key"),
        program=program,
        target=os.path.basename(entry.target),
        name=fields.text("name"),
        arguments=_arguments(fields),
        trace_s=fields.number("trace_s"),
        compile_s=fields.number("compile_s"),
        created=fields.number("created"),
        last_use=entry.used,
        bytes=entry.bytes + sizes.get(f"{entry.target}/programs/{program}", 0),
        principal=fields.text("principal"),
        obstacle=fields.text("obstacle"),
    )


def _arguments(fields: _Fields) -> dict[str, str]:
    parameters = fields.get("parameters", tuple)
    names = [name for name in parameters or () if isinstance(name, str)]
    try:
        forms = argument_shapes(fields.get("skeleton", bytes) or b"", names)
    except ProtocolError:
        return {}
    return {_plain(name): _plain(str(argument.form)) for name, argument in forms.items()}


def _plain(text: str) -> str:
    """The text without control characters."""
    return "".join(each if each.isprintable() else "?" for each in text)


class _Fields:
    """A record's content; another version may have written other fields."""

    def __init__(self, content: Any) -> None:
        self._fields: dict[Any, Any] = {}
        with contextlib.suppress(TypeError, ValueError):
            self._fields = dict(content)

    def get(self, name: str, kind: type | tuple[type, ...]) -> Any:
        value = self._fields.get(name)
        return value if isinstance(value, kind) else None

    def text(self, name: str) -> str:
        return _plain(self.get(name, str) or "")

    def digits(self, name: str) -> str:
        return (self.get(name, bytes) or b"").hex()

    def number(self, name: str) -> float:
        return float(self.get(name, (int, float)) or 0.0)


def target_facts(root: str, target: str) -> dict[str, str]:
    """The description of a target; empty when its folder has none."""
    try:
        with open(f"{root}/{VERSION}/{target}/{TARGET_FILE}", encoding="utf-8") as file:
            facts = json.load(file)
    except (OSError, ValueError):
        return {}
    return {str(name): str(fact) for name, fact in facts.items()} if type(facts) is dict else {}


_MISPLACED: Final = "it is the file of another record"


def check_records(root: str) -> Iterator[tuple[Entry, str | None]]:
    """Each record with what is wrong with it, or None; all of its bytes are checked."""
    for entry in entries(root):
        try:
            header = read_header(entry.path, check=True)
            here = Directory(root, os.path.basename(entry.target)).file(entry.kind, header.name)
            right = (header.kind, header.target) == (entry.kind, os.path.basename(entry.target))
            yield entry, None if right and here == entry.path else _MISPLACED
        except FileNotFoundError:  # swept meanwhile
            continue
        except (InvalidRecord, ValueError) as error:
            yield entry, str(error)
        except OSError as error:
            yield entry, error.strerror
