"""Runs the examples of the ecosystem in processes of their own, and makes the table in docs/.

python -m tests.examples.measuring      measures all of them and writes docs/ecosystem.md anew
"""

from __future__ import annotations

import ast
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.examples.loading import EXAMPLES, assert_equal
from tests.live_server import ROOT, LiveServer

FILES = {
    file.stem: file
    for file in sorted((EXAMPLES / "ecosystem").glob("*.py"))
    if file.stem != "digits"
}
TABLE = ROOT / "docs" / "ecosystem.md"
_PATIENCE_S = 200

_PROGRAM = """
import pickle, re, runpy, sys, warnings
file, mode = sys.argv[1:]
sys.path.insert(0, file.rpartition("/")[0])
import jaxd
from tests.examples.loading import data_of, plain
if mode == "plain":
    import functools
    jaxd.persistent_call = plain
    if file.endswith("flax_nnx.py"):
        from flax import nnx
        jaxd.persistent_call = functools.partial(plain, jit=nnx.jit)
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    before = jaxd.statistics() if mode == "server" else None
    end = runpy.run_path(file, run_name="__main__")
    after = jaxd.statistics() if mode == "server" else None
import jax
leaves, structure = jax.tree.flatten(end["RESULTS"])
report = {
    "results": [re.sub(" at 0x[0-9a-f]+", "", str(structure)), *map(data_of, leaves)],
    "heard": [str(w.message) for w in heard if w.category.__module__ == "jaxd_protocol.errors"],
    "built": (after.traces - before.traces, after.compiles - before.compiles) if after else None,
}
sys.stdout.flush()
sys.stdout.buffer.write(b"\\0" + pickle.dumps(report))
"""


class Example:
    """One file: run on a server from two processes, and in plain jax.

    Args:
        file: the example.
        environment: of a process whose server this is to be; it should not know the example.
    """

    def __init__(self, file: Path, environment: Mapping[str, str]) -> None:
        self.file = file
        self._environment = {**environment, "PYTHONPATH": f"{environment['PYTHONPATH']}:{ROOT}"}

    @cached_property
    def first(self) -> dict[str, Any]:
        """From a process for which nothing is compiled."""
        return self._run("server")

    @cached_property
    def second(self) -> dict[str, Any]:
        """From one that comes after it."""
        assert self.first
        return self._run("server")

    @cached_property
    def plain(self) -> dict[str, Any]:
        """With `jax.jit` for `persistent_call`; with `nnx.jit` where nnx objects change."""
        return self._run("plain")

    @property
    def row(self) -> str:
        """What there is to say of it, as a row of the table."""
        name = self.file.name
        again = "{} / {}".format(*self.second["built"])
        return (
            f"| [{name}](../examples/ecosystem/{name}) | {', '.join(libraries_of(self.file))} "
            f"| {self._functions()} | {self.first['built'][0]} | {again} | {self._agreement()} |"
        )

    def _agreement(self) -> str:
        try:
            assert_equal(self.first["results"], self.plain["results"])
            assert_equal(self.second["results"], self.plain["results"])
        except AssertionError:
            return "others"
        return "the same bits"

    def _functions(self) -> int:
        tree = ast.parse(self.file.read_text())
        names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
        return names.count("persistent_call")

    def _run(self, mode: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(self.file), mode],
            env=self._environment,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        report: dict[str, Any] = pickle.loads(done.stdout.partition(b"\0")[2])
        return report


def rows() -> dict[str, str]:
    """The rows of docs/ecosystem.md, by the names of the examples."""
    found = re.findall(r"^\| \[(\w+)\.py\].*$", TABLE.read_text(), flags=re.MULTILINE)
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| [")]
    return dict(zip(found, lines, strict=True))


def libraries_of(file: Path) -> list[str]:
    """What an example imports beside jax, numpy, ourselves and its own folder."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
    return sorted(found - set(sys.stdlib_module_names) - {"jax", "jaxd", "numpy", "digits"})


def is_installed(file: Path) -> bool:
    """Whether all that an example imports is there."""
    needed = libraries_of(file)
    if "from digits" in file.read_text():
        needed.append("sklearn")
    return all(find_spec(name) for name in needed)


def main() -> None:
    """Measures every example and puts its row into the table."""
    measured = []
    for file in FILES.values():
        directory = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
        server = LiveServer(directory)
        try:
            measured.append(Example(file, server.environment).row)
        finally:
            server.close()
            shutil.rmtree(directory)
    text = TABLE.read_text()
    before, after = text[: text.index("| [")], text[text.rindex("| [") :].partition("\n")[2]
    TABLE.write_text(before + "\n".join(measured) + "\n" + after)


if __name__ == "__main__":
    main()
