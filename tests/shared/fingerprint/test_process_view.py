"""Whom a walk asks about modules."""

from __future__ import annotations

import importlib.machinery
import json
import sys
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.fingerprint.process_view import SALT, LocalProcess, is_extension
from jaxd_protocol.packages.distributions import Package

PACKAGE = Package("optax", "1.0", b"d" * 16)


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


def test_here_packages_and_modules_are_those_of_this_process() -> None:
    """The standard library belongs to no package."""
    here = LocalProcess()
    package = here.package("numpy.linalg")
    assert package is not None
    assert (package.name, package.version) == ("numpy", np.__version__)
    assert here.package("json") is None
    assert here.module("json") is json
    assert here.module("json.nowhere") is None
    assert here.salt == SALT


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


def test_a_source_is_kept_while_its_file_stays_as_it_is(folder: Path) -> None:
    """The same object, so that a guard can compare it."""
    here = LocalProcess()
    before = here.source("world_alone")
    assert here.source("world_alone") is before
    (folder / "world_alone.py").write_text("VALUE = 100\n")
    after = here.source("world_alone")
    assert before is not None
    assert after is not None
    assert after.code != before.code


def test_here_what_somebody_may_have_changed_is_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a module came with is not."""
    here = LocalProcess()
    assert not here.carries(json, "dumps", json.dumps)
    assert here.carries(json, "dumps", lambda x: x)


def test_an_extension_is_told_by_the_end_of_its_name() -> None:
    """Those of this interpreter."""
    assert is_extension(f"/home/user/fast{importlib.machinery.EXTENSION_SUFFIXES[0]}")
    assert not is_extension("/home/user/fast.py")


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
