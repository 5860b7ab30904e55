"""Code that arrives imports its own modules, and nobody else sees them."""

from __future__ import annotations

import base64
import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.data_model import Source
from jaxd_protocol.pickling.unpack.private_modules import (
    NotShipped,
    PatchedModule,
    PrivateModules,
    patched_module,
)
from tests.ids import stable_id
from tests.shared.pickling.processes import (
    SHARED,
    call_in_subprocess,
    pack_in_subprocess,
    run,
    write,
)

PACKAGE = {
    "mine/__init__.py": "from . import layers\nVERSION = {version}\n",
    "mine/consts.py": "K = {version}\n",
    "mine/layers.py": """
import threading
from . import circular, consts
LOCK = threading.Lock()
COUNT = {{}}
def dense(x):
    with LOCK:
        COUNT[x] = COUNT.get(x, 0) + 1
    return x * consts.K + circular.two()
def never():
    return not_defined_anywhere
""",
    "mine/circular.py": """
from . import layers
def two():
    return 2
def back(x):
    return layers.dense(x)
""",
    "mine/lazy.py": """
from . import lazier
from .consts import K
RUNS = []
RUNS.append(1)
def go(x):
    return x + K + lazier.one() + len(RUNS)
""",
    "mine/lazier.py": "import mine.lazy\ndef one():\n    return 1\n",
    "mine/inner/__init__.py": "",
    "mine/inner/deep.py": """
from ..consts import K
def up(x):
    from .. import consts
    from ..layers import dense as renamed
    return x + K + consts.K + renamed(1)
""",
    "use.py": """
import mine, mine.layers
import mine.consts as consts
from mine import circular, layers
from mine.inner import deep
GLOBAL = 5
def chain():
    return mine.layers.dense(3), mine.VERSION
def module_global():
    return layers.dense(3)
def constant():
    return consts.K
def escaping():
    return getattr(layers, "dense")(3)
def from_in_body():
    from mine.layers import dense
    return dense(2)
def import_in_body():
    import mine.consts
    return mine.consts.K
def import_as():
    import mine.consts as c, mine.layers as l
    return c.K, l.dense(1)
def relative():
    return deep.up(1)
def circle():
    return circular.back(4)
def class_in_body():
    class Local:
        k = consts.K + GLOBAL
        from mine.consts import K as also
        def sum(self):
            return self.k + self.also
    return Local().sum()
def not_imported_yet():
    import mine.lazy
    from mine import lazier
    from mine.lazy import go
    return go(1), go(2), lazier.one()
def refused():
    exec("import mine.un" + "known")
""",
}
RESULTS: dict[str, Any] = {
    "chain": (23, 7),
    "module_global": 23,
    "constant": 7,
    "escaping": 23,
    "from_in_body": 16,
    "import_in_body": 7,
    "import_as": (7, 9),
    "relative": 24,
    "circle": 30,
    "class_in_body": 19,
    "not_imported_yet": (10, 11, 1),
}


def package(folder: Path, version: int) -> Path:
    """The author's files, as they are in one version."""
    return write(
        folder,
        {
            name: text.format(version=version) if "version" in text or "{{" in text else text
            for name, text in PACKAGE.items()
        },
    )


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The functions of version 7."""
    author = package(tmp_path_factory.mktemp("author"), 7)
    return pack_in_subprocess(author, "use", [*RESULTS, "refused"])


@pytest.fixture(scope="module")
def called(packed: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What they return on a server without the package."""
    return call_in_subprocess(
        tmp_path_factory.mktemp("server"), {name: packed[name] for name in RESULTS}
    )


def test_a_function_finds_its_modules(called: dict[str, str]) -> None:
    """However it refers to them, and whether or not its process had imported them."""
    assert called == {name: repr(expected) for name, expected in RESULTS.items()}


def test_a_stale_copy_on_the_server_does_not_count(
    packed: dict[str, bytes], called: dict[str, str], tmp_path: Path
) -> None:
    """The client's version wins, and the server's is not even imported."""
    server = package(tmp_path, -1)
    there = call_in_subprocess(
        server, {name: packed[name] for name in RESULTS}, PYTHONPATH=f"{server}:{SHARED}"
    )
    assert there == called


def test_two_versions_live_side_by_side(packed: dict[str, bytes], tmp_path: Path) -> None:
    """Each function keeps its own client's modules."""
    author = package(tmp_path / "other", 1000)
    other = pack_in_subprocess(author, "use", ["chain", "import_in_body"])
    both = {
        "old": packed["chain"],
        "new": other["chain"],
        "new body": other["import_in_body"],
        "old body": packed["import_in_body"],
    }
    assert call_in_subprocess(tmp_path, both) == {
        "old": "(23, 7)",
        "new": "(3002, 1000)",
        "new body": "1000",
        "old body": "7",
    }


def test_no_module_of_a_client_enters_the_servers_table_and_none_leaves_it(
    packed: dict[str, bytes], tmp_path: Path
) -> None:
    """One that did not come is refused, with what to do, though the server happens to have it."""
    program = """
import base64, json, sys
from jaxd_protocol.pickling.unpack.unpickler import unpack_function
good, refused = (unpack_function(base64.b64decode(each)) for each in json.load(sys.stdin))
good.function()
print([name for name in sys.modules if name.partition(".")[0] in ("mine", "use")])
try:
    refused.function()
except ImportError as error:
    print(type(error).__name__, error)
"""
    names = ("not_imported_yet", "refused")
    given = json.dumps([base64.b64encode(packed[name]).decode() for name in names])
    modules, said = run(program, cwd=package(tmp_path, -1), given=given).split("\n", 1)
    assert modules == "[]"
    assert said.startswith("NotShipped no module named 'mine.unknown' came with this function")
    assert "Write 'import mine.unknown' where" in said


def blob_with(**sources: str) -> PrivateModules:
    """A blob with modules as source; two underscores stand for a dot."""
    blob = PrivateModules()
    for name, text in sources.items():
        full = name.replace("__", ".")
        is_package = any(other.startswith(f"{name}__") for other in sources)
        blob.sources[full] = Source(compile(text, f"{full}.py", "exec"), is_package)
    return blob


def execute(blob: PrivateModules, text: str) -> dict[str, object]:
    """The globals of code that ran with this blob's builtins."""
    namespace: dict[str, object] = {"__builtins__": blob.builtins, "__name__": "mine"}
    exec(text, namespace)
    return namespace


def test_a_source_runs_once_also_with_many_threads() -> None:
    """The others wait for the one that runs it."""
    blob = blob_with(counted="import builtins\nRUNS = []\nRUNS.append(1)\n")
    start = threading.Barrier(4)
    found: list[Any] = []

    def look() -> None:
        start.wait()
        found.append(execute(blob, "import counted")["counted"])

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(module) for module in found}) == 1
    assert found[0].RUNS == [1]


def test_a_source_that_fails_is_run_again() -> None:
    """As an import statement does it: nothing half done stays."""
    blob = blob_with(broken="raise ValueError('first')")
    for _ in range(2):
        with pytest.raises(ValueError, match="first"):
            execute(blob, "import broken")


def test_a_star_imports_what_all_names() -> None:
    """Submodules among them."""
    blob = blob_with(top="__all__ = ['sub', 'x']\nx = 1\ny = 2\n", top__sub="z = 3\n")
    namespace = execute(blob, "from top import *")
    assert namespace["sub"].z == 3  # type: ignore[attr-defined]
    assert "y" not in namespace


def test_a_relative_import_beyond_the_top_is_an_error() -> None:
    """As it was where the code was written."""
    with pytest.raises(ImportError, match="relative"):
        execute(blob_with(), "from .... import x")


def test_an_installed_module_is_the_servers_own() -> None:
    """Only what came is private."""
    assert (
        execute(blob_with(mine="x = 1"), "import json.decoder as d")["d"]
        is sys.modules["json.decoder"]
    )


def test_other_parts_of_a_namespace_package_are_the_servers_own() -> None:
    """A namespace package has parts in several distributions."""
    blob = PrivateModules()
    blob.modules["json"] = blob.make_module("json", "json", True)
    blob.namespaces.add("json")
    assert execute(blob, "from json.decoder import JSONDecoder")["JSONDecoder"]


def test_a_refusal_is_a_packing_error_and_an_import_error() -> None:
    """Code that tries an import and goes on without keeps working."""
    assert issubclass(NotShipped, PackingError)
    blob = blob_with(mine__here="x = 1")
    found = execute(blob, "try:\n    import mine.absent\nexcept ImportError:\n    answer = 1\n")
    assert found["answer"] == 1


def test_an_import_statement_finds_the_overlay() -> None:
    """Also in its other forms."""
    blob = PrivateModules()
    patched_module(blob, "json", {"dumps": "mine"})
    text = "import json\nfrom json import dumps\na = json.dumps, dumps"
    assert execute(blob, text)["a"] == ("mine", "mine")


def test_an_overlay_falls_through_to_the_real_module() -> None:
    """Only the attributes that came are others."""
    found = patched_module(PrivateModules(), "json", {"dumps": "mine"})
    assert isinstance(found, PatchedModule)
    assert found.dumps == "mine"
    assert found.loads is json.loads
    assert "loads" in dir(found)
    assert json.dumps(1) == "1"


def test_equal_attributes_need_no_overlay() -> None:
    """The server's module is used as it is."""
    assert (
        patched_module(PrivateModules(), "json", {"__name__": "json", "dumps": json.dumps}) is json
    )


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [(1, True), (0.0, -0.0), ([1], [1.0]), (np.ones(2), np.ones(2, int)), (object(), object())],
    ids=stable_id,
)
def test_a_value_that_only_looks_equal_differs(mine: Any, theirs: Any) -> None:
    """It counts in the key as what it is, and so it arrives as that."""
    json_of_server: Any = json
    json_of_server.made_up = mine
    try:
        assert patched_module(PrivateModules(), "json", {"made_up": mine}) is json
        found = patched_module(PrivateModules(), "json", {"made_up": theirs})
    finally:
        del json_of_server.made_up
    assert isinstance(found, PatchedModule)
    assert found.made_up is theirs
