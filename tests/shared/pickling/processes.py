"""Functions that are packed in one process and run in another, which has none of their modules."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jaxd_protocol.fingerprint import walk
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack_function

SHARED = Path(__file__).resolve().parents[3] / "shared"

# Where Python keeps its .pyc files is a matter of these tests.
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

_PACK = """
import base64, importlib, json, sys
sys.path.insert(0, "")
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.pickling.pack.functions import pack_function
module = importlib.import_module(sys.argv[1])
packed = {}
for name in sys.argv[2:]:
    function = getattr(module, name)
    data = pack_function(function, name, walk(function, name).reach)
    packed[name] = base64.b64encode(data).decode()
print(json.dumps(packed))
"""

_CALL = """
import base64, json, sys
from jaxd_protocol.pickling.unpack.unpickler import unpack_function
functions = {
    name: unpack_function(base64.b64decode(data)).function
    for name, data in json.load(sys.stdin).items()
}
print(json.dumps({name: repr(function()) for name, function in functions.items()}))
"""


def run(program: str, *args: str, cwd: Path, given: str = "", **env: str) -> str:
    """What a fresh process writes that has the protocol on its path."""
    return subprocess.run(
        [sys.executable, "-c", program, *args],
        input=given,
        cwd=cwd,
        env=PLAIN | {"PYTHONPATH": str(SHARED), "JAX_PLATFORMS": "cpu"} | env,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def write(folder: Path, files: dict[str, str]) -> Path:
    """The folder, with these files in it."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def pack_in_subprocess(
    author: Path, module: str, names: Iterable[str], **env: str
) -> dict[str, bytes]:
    """Functions of a module, packed in a process of their author's."""
    written = run(_PACK, module, *names, cwd=author, **env)
    return {name: base64.b64decode(data) for name, data in json.loads(written).items()}


def call_in_subprocess(server: Path, packed: dict[str, bytes], **env: str) -> dict[str, str]:
    """The `repr` of what each function returns in a process that has only the protocol."""
    given = json.dumps({name: base64.b64encode(data).decode() for name, data in packed.items()})
    found: dict[str, str] = json.loads(run(_CALL, cwd=server, given=given, **env))
    return found


def round_trip(function: Callable[..., Any]) -> Any:
    """The function as a server would have it, in this process."""
    data = pack_function(function, "it", walk(function, "it").reach)
    return unpack_function(data).function
