"""Whom a warning points to."""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import jaxd_protocol
from jaxd_protocol.packages import installed
from jaxd_protocol.packages.installed import (
    OWN_PACKAGES,
    is_local_file,
    is_local_module,
    site_folder,
    user_stacklevel,
)
from tests.ids import row


def test_the_environment_is_installed() -> None:
    """The standard library, however it is built, and site-packages."""
    rows: list[str] = [
        "sys",
        "json",
        "json.decoder",
        "builtins",
        "zipimport",
        "os",
        "numpy.linalg",
        "math",
    ]
    for name in rows:
        with row(name):
            importlib.import_module(name)
            assert not is_local_module(name)


@pytest.mark.parametrize("name", ["__main__", None, __name__, "a_module_that_is_gone"])
def test_what_the_user_writes_is_local(name: str | None) -> None:
    """Also what has no module any more."""
    assert is_local_module(name)


def test_a_module_made_by_hand_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook or a test: only its value can travel."""
    monkeypatch.setitem(sys.modules, "made_by_hand", types.ModuleType("made_by_hand"))
    assert is_local_module("made_by_hand")


def test_our_own_packages_are_installed_wherever_they_lie() -> None:
    """Here they are imported from a working tree."""
    assert is_local_file(jaxd_protocol.__file__)
    for name in (*OWN_PACKAGES, "jaxd_protocol.wire.frames", "jaxd.not_loaded"):
        assert not is_local_module(name)
    assert is_local_module("jaxdish")


@pytest.mark.parametrize("installed", [True, False])
def test_a_folder_without_init_is_where_its_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    """A namespace package has no file of its own."""
    folder = tmp_path / ("site-packages" if installed else "work")
    (folder / "some_namespace").mkdir(parents=True)
    monkeypatch.syspath_prepend(folder)
    module = importlib.import_module("some_namespace")
    monkeypatch.setitem(sys.modules, "some_namespace", module)
    assert is_local_module("some_namespace") is not installed


def test_a_file_is_judged_by_where_it_really_is(tmp_path: Path) -> None:
    """An editable install or a link does not make it installed, nor the other way round."""
    link = tmp_path / "json"
    link.symlink_to(os.path.dirname(json.__file__))
    assert not is_local_file(str(link / "decoder.py"))
    assert not is_local_file(np.__file__)
    assert is_local_file(str(tmp_path / "mine.py"))
    assert is_local_file(str(tmp_path / "site-packages-of-mine" / "mine.py"))
    assert not is_local_file(str(tmp_path / "site-packages" / "theirs.py"))


def test_the_standard_library_lies_below_the_folders_that_are_looked_at_first() -> None:
    """What lies below none of them is the user's, and nobody has to ask where the library is."""
    for folder in (
        *installed._standard_library(),
        os.path.dirname(os.path.realpath(json.__file__)),
    ):
        assert os.path.join(folder, "").startswith(installed._prefixes())


@pytest.mark.parametrize("prefix", ["prefix", "base_exec_prefix"])
def test_a_project_below_a_prefix_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """As in a container whose environment and whose code both lie below `/usr` or `/app`."""
    monkeypatch.setattr(sys, prefix, str(tmp_path))
    monkeypatch.setattr(installed, "_prefixes", installed._prefixes.__wrapped__)
    assert str(tmp_path / "mine.py").startswith(installed._prefixes())
    assert is_local_file(str(tmp_path / "mine.py"))
    assert not is_local_file(os.path.realpath(json.__file__))


def test_a_module_without_file_is_what_its_parent_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extension modules make submodules; also when such a name is not loaded."""
    jaxlib = importlib.import_module("jaxlib._jax")
    assert not is_local_module(jaxlib.pytree.PyTreeDef.__module__)
    assert not is_local_module("jaxlib._jax.not_there")
    monkeypatch.setitem(sys.modules, "numpy.by_hand", types.ModuleType("numpy.by_hand"))
    assert not is_local_module("numpy.by_hand")
    assert is_local_module(f"{__name__}.by_hand")


def test_an_editable_installation_is_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is done: here by a link in `site-packages`."""
    (tmp_path / "work" / "linked_package").mkdir(parents=True)
    (tmp_path / "work" / "linked_package" / "__init__.py").touch()
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "linked_package").symlink_to(tmp_path / "work" / "linked_package")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    module = importlib.import_module("linked_package")
    monkeypatch.setitem(sys.modules, "linked_package", module)
    assert is_local_module("linked_package")


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/a/site-packages/jax/__init__.py", "/a/site-packages"),
        ("/a/dist-packages/m.py", "/a/dist-packages"),
        ("/a/site-packages/b/lib/site-packages/m.py", "/a/site-packages/b/lib/site-packages"),
        ("/a/my-site-packages/m.py", None),
        ("m.py", None),
    ],
)
def test_the_folder_of_an_installed_file(path: str, folder: str | None) -> None:
    """The innermost: an environment may lie in another."""
    assert site_folder(path) == folder


def of_ours(depth: int) -> Callable[[], None]:
    """A function of our own package, so many calls deep, that warns."""
    names = {"__name__": "jaxd.somewhere", "warnings": warnings, "users_level": user_stacklevel}
    exec(
        "def warn(depth):\n"
        "    if depth:\n"
        "        return warn(depth - 1)\n"
        "    warnings.warn('look here', UserWarning, users_level())\n",
        names,
    )
    return lambda: names["warn"](depth)  # type: ignore[operator]


@pytest.mark.parametrize("depth", [0, 1, 7])
def test_the_first_frame_that_is_not_ours(depth: int) -> None:
    """However deep in our own code the warning is made."""
    with pytest.warns(UserWarning, match="look here") as caught:
        of_ours(depth)()
    assert caught[0].filename == __file__
