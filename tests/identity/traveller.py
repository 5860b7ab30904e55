"""A program that packs the functions of projects, and one that receives them without the projects.

`pack` reads jobs from its standard input and writes what it packed to the file it is given;
`receive` reads that file as a server would read its clients' answers.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from tests.identity.prober import in_child_process, load


def pack(job: dict[str, Any]) -> dict[str, Any]:
    """Imports a project and packs what it is asked for: what its client would tell a server."""
    os.chdir(job["folder"])
    sys.path[:0] = [job["folder"], *job["path"]]
    sys.argv = ["main.py"]
    steps: dict[str, Any] = {}
    exec(job["before"], steps)
    main = steps["main"] = load(job["module"], job["file"], job["called"])
    exec(job["after"], steps)
    return {name: _packed(eval(name, vars(main)), name) for name in job["names"]}


def _packed(value: Any, name: str) -> Any:
    from jaxd_protocol.errors import JaxdError
    from jaxd_protocol.fingerprint import PackedFor, packing_for, walk
    from jaxd_protocol.fingerprint.values.reflection import of_classes
    from jaxd_protocol.messages.function_manifest import FunctionManifest
    from jaxd_protocol.pickling.pack.functions import pack_function

    try:
        walked = walk(value, name)
        manifest = FunctionManifest.of(walked.fingerprint)
        scope = walked.reach.scope(walked.fingerprint.digest)
        with packing_for(PackedFor(None, of_classes(walked.reach.readers), scope)):
            return manifest.to_message(), bytes(pack_function(value, name, walked.reach))
    except JaxdError as error:
        return f"refused: {type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  whatever it is, the test that asked fails with it
        return f"crashed: {traceback.format_exc()}"


def receive(packed: dict[str, Any]) -> dict[str, str]:
    """What became of each function: nothing to say of one that means what it meant."""
    return {name: _received(name, each) for name, each in packed.items()}


def _received(name: str, packed: Any) -> str:
    from jaxd_protocol.fingerprint import walk
    from jaxd_protocol.messages.function_manifest import FunctionManifest
    from jaxd_protocol.pickling.unpack.unpickler import unpack_function

    if isinstance(packed, str):
        return packed
    message, data = packed
    manifest = FunctionManifest.from_message(message)
    try:
        arrived = unpack_function(data)
        modules = {**arrived.patched_modules, **arrived.modules}
        there = manifest.there(modules, arrived.sources)
        found = walk(arrived.function, name, there, manifest.ignored).fingerprint
    except Exception:  # noqa: BLE001  the same
        return f"crashed: {traceback.format_exc()}"
    if not manifest.shared:
        return "unshared" if found.unshared else "has got a content"
    if found.digest == manifest.fingerprint:
        return ""
    here, now = ({(p.kind, p.name): p for p in parts} for parts in (manifest.parts, found.parts))
    names = [key for key in here | now if here.get(key) != now.get(key)]
    if any(kind == "installed" for kind, _ in names):  # the server says so to the client
        return f"refused there: {names[0][1]}"
    return f"differs: {[(here.get(key), now.get(key)) for key in names]}"


def main(what: str, payload: str) -> None:
    """Does one half of the round trip."""
    order = json.load(sys.stdin)
    for name in order["preload"]:
        importlib.import_module(name)
    importlib.import_module("jaxd_protocol.pickling")
    if what == "pack":
        packed = [in_child_process(partial(pack, job)) for job in order["jobs"]]
        Path(payload).write_bytes(pickle.dumps(packed))
        return
    received = []
    for job, packed in zip(order["jobs"], pickle.loads(Path(payload).read_bytes()), strict=True):
        installed = [path for path in job["path"] if os.path.isdir(path)]
        if installed:
            received.append(in_child_process(partial(_with, installed, packed)))
        else:
            received.append(receive(packed))
    json.dump(received, sys.stdout)


def _with(installed: list[str], packed: dict[str, Any]) -> dict[str, str]:
    sys.path[:0] = installed
    return receive(packed)


if __name__ == "__main__":
    main(*sys.argv[1:])
