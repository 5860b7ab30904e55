"""What a server did meanwhile, in numbers, and the files that it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from jaxd import Client
from tests.live_server import LiveServer

_COUNTERS: Final = (
    "traces",
    "lowers",
    "compiles",
    "executable_hits",
    "executable_loads",
    "programs_shared",
    "xla_cache_hits",
)

BUILT: Final = {"traces": 1, "lowers": 1, "compiles": 1}
LOADED: Final = {"executable_loads": 1}
WARM: Final = {"executable_hits": 1}


@contextmanager
def costs(client: Client) -> Iterator[dict[str, int]]:
    """What the server did inside of the block, for whomever: the counters that changed."""
    before = client.caller.session.ask("statistics")
    spent: dict[str, int] = {}
    yield spent
    after = client.caller.session.ask("statistics")
    changed = {name: after[name] - before[name] for name in _COUNTERS}
    spent.update({name: count for name, count in changed.items() if count})


def records(directory: Path, kind: str = "*", target: str = "*") -> list[Path]:
    """The finished files of a kind in the cache of the servers of a directory."""
    found = sorted((directory / "cache" / "jaxd" / "v2").glob(f"{target}/{kind}/*"))
    return [path for path in found if path.is_file() and not path.name.startswith(".")]


def warnings_of(server: LiveServer) -> list[Any]:
    """What the log holds that somebody should look at, but for workers that a test has killed."""
    return [
        line["event"]
        for line in server.lines
        if line.get("level") in ("warning", "error") and line["event"] != "worker_lost"
    ]
