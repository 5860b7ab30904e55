from __future__ import annotations

import builtins
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from jaxd import connect
from jaxd_protocol.errors import NotInteractive
from jaxd_server.user_code.sandbox import InstalledOnly, prepare_for_user_code
from tests.live_server import LiveServer


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's own code, on this process's path."""
    (tmp_path / "own_module.py").write_text("VALUE = 1\n")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("")
    (tmp_path / "own_namespace").mkdir()
    (tmp_path / "own_namespace" / "inner.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> Iterator[InstalledOnly]:
    """In force in this process."""
    finder = InstalledOnly()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    yield finder
    for name in ("own_module", "own_package", "own_namespace"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["own_module", "own_package", "own_namespace"])
def test_local_modules_cannot_be_imported(finder: InstalledOnly, local: Path, name: str) -> None:
    """They would stay as they were, however often they are edited; the message says what to do."""
    with pytest.raises(ModuleNotFoundError, match=r"is a local module.*Import it at the top"):
        importlib.import_module(name)
    assert name not in sys.modules


def test_local_modules_of_other_finders_cannot_be_imported(
    finder: InstalledOnly, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As editable installs have them."""

    class Editable:
        def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
            origin = str(local / "own_module.py")
            return ModuleSpec(name, None, origin=origin) if name == "edited" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable()])
    with pytest.raises(ModuleNotFoundError, match="'edited' is a local module"):
        importlib.import_module("edited")


@pytest.mark.parametrize("name", ["colorsys", "concurrent.futures", "rpyc.lib.compat", "_heapq"])
def test_installed_modules_can_be_imported(
    finder: InstalledOnly, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the standard library and from a `site-packages`, in Python and in C."""
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert importlib.import_module(name).__name__ == name


def test_what_does_not_exist_is_said_to(finder: InstalledOnly) -> None:
    """By Python itself; our own packages can be imported, also from a checkout."""
    with pytest.raises(ModuleNotFoundError, match="No module named 'own_imagination'"):
        importlib.import_module("own_imagination")
    for name in ("jaxd", "jaxd_protocol", "jaxd_server"):
        assert finder.find_spec(name, None) is None


def test_preparing_takes_the_terminal_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """`input` and `breakpoint` say where they can be used, and local modules cannot be imported."""
    monkeypatch.setattr(builtins, "input", builtins.input)
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    prepare_for_user_code()
    with pytest.raises(NotInteractive, match="pass the answer as an argument"):
        input("name? ")
    with pytest.raises(NotInteractive, match="JAXD_INLINE=1"):
        breakpoint(header="here")  # noqa: T100
    assert type(sys.meta_path[0]) is InstalledOnly


# through a real server ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_function_cannot_make_the_server_import_a_local_module(
    start_live: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """One that its own process does not find, from a folder on the server's path."""
    (tmp_path / "own_module.py").write_text("VALUE = 1\n")

    def use(x: Any) -> Any:
        import own_module  # type: ignore[import-not-found]

        return x * own_module.VALUE

    live = start_live(PYTHONPATH=os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)]))
    with connect(live.unix) as client:
        persistent = client.persistent_call(use)
        with pytest.raises(ModuleNotFoundError, match="'own_module' is a local module"):
            persistent(1.0)
