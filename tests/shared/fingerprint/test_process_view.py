"""Whom a walk asks about modules."""

from __future__ import annotations

import json
import sys
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxd_protocol.fingerprint.data_model import Source
from jaxd_protocol.fingerprint.process_view import ClientProcess, LocalProcess
from jaxd_protocol.packages.distributions import Package


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's own modules, on this process's path and not imported."""
    (tmp_path / "world_alone.py").write_text("VALUE = 1\n")
    (tmp_path / "world_package").mkdir()
    (tmp_path / "world_package" / "__init__.py").write_text("VALUE = 2\n")
    (tmp_path / "world_package" / "inner.py").write_text("VALUE = 3\n")
    (tmp_path / "world_space").mkdir()
    (tmp_path / "world_space" / "inner.py").write_text("VALUE = 4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "world_alone",
        "world_package",
        "world_package.inner",
        "world_space",
        "world_space.inner",
        "world_package.missing",
        "world_missing",
        "__main__",
        __name__,
    ],
)
def test_what_is_the_user_s_own_is_local(folder: Path, name: str) -> None:
    """Imported or not, and what is not there at all; nothing is imported to find out."""
    assert LocalProcess().is_local(name)
    assert (name in sys.modules) == (name in ("__main__", __name__))


@pytest.mark.parametrize(
    "name",
    ["json", "colorsys", "xml.sax.saxutils", "numpy", "numpy.linalg", "rpyc.lib", "jaxd_protocol"],
)
def test_what_is_installed_is_not_local(name: str) -> None:
    """Imported or not."""
    assert not LocalProcess().is_local(name)


@pytest.mark.parametrize(
    ("name", "value", "is_package"),
    [
        ("world_alone", 1, False),
        ("world_package", 2, True),
        ("world_package.inner", 3, False),
        ("world_space.inner", 4, False),
    ],
)
def test_the_source_of_a_module_that_is_not_imported(
    folder: Path, name: str, value: int, is_package: bool
) -> None:
    """Compiled and not run; with whether it has submodules."""
    source = LocalProcess().source(name)
    assert source is not None
    content: dict[str, object] = {}
    exec(source.code, content)
    assert (content["VALUE"], source.is_package) == (value, is_package)
    assert name not in sys.modules


@pytest.mark.parametrize("name", ["world_missing", "world_space", "colorsys", "math", "a.b.c"])
def test_what_has_no_source_of_the_user_s_own(folder: Path, name: str) -> None:
    """Missing, a folder without a file, and what is installed."""
    assert LocalProcess().source(name) is None


def test_a_package_that_an_import_hook_finds_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some editable installs bring a finder of their own; the package is not imported for it."""
    (tmp_path / "hooked_package.py").write_text("VALUE = 1\n")

    class Hook:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            if name != "hooked_package":
                return None
            return spec_from_file_location(name, tmp_path / "hooked_package.py")

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Hook])
    assert LocalProcess().is_local("hooked_package")
    found = LocalProcess().source("hooked_package")
    assert found is not None
    assert "VALUE" in found.code.co_names
    assert "hooked_package" not in sys.modules


OPTAX = Package("optax", "1.0", b"d" * 16)


def there() -> ClientProcess:
    """A client that has said this much."""
    return ClientProcess(
        salt=b"salt",
        packages={"optax": OPTAX},
        local={"json": True, "mine": True, "theirs": False},
        carried=frozenset({"json:dumps"}),
        modules={"mine": ModuleType("mine")},
        sources={"late": Source(compile("1", "late.py", "exec"), False)},
    )


def test_there_what_the_client_said_counts() -> None:
    """Also where this process would have decided in another way."""
    process_view = there()
    assert process_view.is_local("json")
    assert not process_view.is_local("theirs")
    assert process_view.package("optax.losses") is OPTAX
    assert process_view.package("numpy") is None
    assert process_view.carries(json, "dumps", json.dumps)
    assert not process_view.carries(json, "loads", lambda x: x)


def test_there_what_the_client_did_not_meet_is_looked_at_here() -> None:
    """Objects of the server's own libraries may lead to more modules."""
    process_view = there()
    assert not process_view.is_local("numpy.linalg")
    assert process_view.is_local(__name__)


def test_there_local_modules_are_those_that_came() -> None:
    """Never those of this process: two clients have two of the same name."""
    process_view = there()
    assert process_view.module("mine") is process_view.modules["mine"]
    assert process_view.module("json") is None
    assert process_view.module("math") is sys.modules["math"]
    assert process_view.source("late") is process_view.sources["late"]
    assert process_view.source("world_alone") is None
