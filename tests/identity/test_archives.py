"""With `ship="source"` the code of whole packages is in the key, and nothing else of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from tests.shared.pickling.processes import run, write

FILES = {
    "shop/__init__.py": "from .base import RATE\n",
    "shop/base.py": "RATE = 2\ndef helped(x):\n    return x * RATE\n",
    "shop/unrelated.py": "def other(x):\n    return x\n",
    "shop/broken.py": "this is no Python\n",
    "single.py": "import needed\ndef alone(x):\n    return needed.go(x)\n",
    "needed.py": "def go(x):\n    return x\n",
    "far/__init__.py": "VALUE = 1\n",
}
MAIN = """
import importlib
import shop.base, single
from shop.base import helped
FACTOR = 3
def step(x): return helped(x) * FACTOR
def other(x): return single.alone(x)
def computed(x): return importlib.import_module("far").VALUE * x
def lazy(x):
    import far
    return far.VALUE * x
def plain(x): return x
"""
DIGEST_PROGRAM = """
import json
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint.local_archives import LocalArchives
found = {}
for name in ("step", "other", "computed", "lazy", "plain"):
    archives = LocalArchives()
    found[name] = walk(globals()[name], name, archives=archives).fingerprint.digest.hex()
print(json.dumps(found))
"""
NAMES = {"step", "other", "computed", "lazy", "plain"}

Look = Callable[[], dict[str, str]]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Gives the digest of each function, as a fresh process finds it."""
    write(tmp_path, FILES | {"main.py": MAIN})
    return lambda: look_in(tmp_path)


def look_in(folder: Path, program: str = DIGEST_PROGRAM) -> Any:
    """What a program prints that continues the main one."""
    return json.loads(run((folder / "main.py").read_text() + program, cwd=folder))


EDITS = {
    "code that is reached": ("shop/base.py", "x * RATE", "x / RATE", {"step"}),
    "another module of the same package": ("shop/unrelated.py", "return x", "return -x", {"step"}),
    "a comment": ("shop/base.py", "RATE = 2", "# why\nRATE = 2", set()),
    "a package that a reached one imports": ("needed.py", "return x", "return -x", {"other"}),
    "a package by a name that can be read": ("far/__init__.py", "1", "2", {"computed", "lazy"}),
    "the main program": ("main.py", "FACTOR = 3", "FACTOR = 4", {"step"}),
}


@pytest.mark.parametrize("says", EDITS)
def test_an_edit_changes_the_functions_that_reach_its_package(
    says: str, look: Look, tmp_path: Path
) -> None:
    """All of a package counts, and no package that is not reached."""
    file, old, new, expected = EDITS[says]
    before = look()
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    after = look()
    assert {name for name in NAMES if before[name] != after[name]} == expected


def test_a_new_file_in_the_package_changes_the_key(look: Look, tmp_path: Path) -> None:
    """A computed import may find it."""
    before = look()
    write(tmp_path, {"shop/more.py": "X = 1\n"})
    after = look()
    assert {name for name in NAMES if before[name] != after[name]} == {"step"}


def test_both_ways_never_share_a_key(look: Look, tmp_path: Path) -> None:
    """Also for a function that reaches no package at all."""
    by_value = """
import json
from jaxd_protocol.fingerprint import walk
print(json.dumps(walk(plain, "plain").fingerprint.digest.hex()))
"""
    assert look_in(tmp_path, by_value) != look()["plain"]


def test_the_folder_of_a_package_does_not_count(look: Look, tmp_path: Path) -> None:
    """Another checkout of the same code has the same key."""
    there = tmp_path / "elsewhere"
    write(there, FILES | {"main.py": MAIN})
    assert look_in(there) == look()


def test_a_setting_that_is_read_counts_as_it_is_now(tmp_path: Path) -> None:
    """So that a server can notice that its copy has another one."""
    write(
        tmp_path, {"shop.py": "RATE = 1\n", "main.py": "import shop\ndef f(x): return shop.RATE\n"}
    )
    program = """
import json
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint.local_archives import LocalArchives
def digest(): return walk(f, "f", archives=LocalArchives()).fingerprint.digest.hex()
before = digest()
shop.RATE = 2
print(json.dumps([before, digest()]))
"""
    before, after = look_in(tmp_path, program)
    assert before != after


def test_a_compiled_extension_in_the_package_is_refused(tmp_path: Path) -> None:
    """It has no source that could run on the server."""
    fast = f"shop/fast{EXTENSION_SUFFIXES[0]}"
    write(tmp_path, {"shop/__init__.py": "", fast: "", "main.py": ""})
    program = """
import json, shop
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint.local_archives import LocalArchives
def f(x): return shop
try: walk(f, "f", archives=LocalArchives())
except PackingError as error: print(json.dumps(str(error)))
"""
    assert f"{fast} is a compiled extension" in look_in(tmp_path, program)
