from __future__ import annotations

import importlib
import json
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import jaxd_protocol
from jaxd_protocol.installed import OWN_PACKAGES, is_local_file, is_local_module


@pytest.mark.parametrize(
    "name", ["sys", "json", "json.decoder", "builtins", "zipimport", "os", "numpy.linalg", "math"]
)
def test_the_environment_is_installed(name: str) -> None:
    """The standard library, however it is built, and site-packages."""
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
    for name in (*OWN_PACKAGES, "jaxd_protocol.wire.reading", "jaxd.not_loaded"):
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
