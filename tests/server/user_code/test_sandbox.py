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

from jaxd import Client, connect
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


@pytest.mark.parametrize("name", ["jaxd", "jaxd_protocol", "jaxd_server"])
def test_our_own_packages_can_be_imported(finder: InstalledOnly, name: str) -> None:
    """Also from a checkout, which is no `site-packages`."""
    assert finder.find_spec(name, None) is None


def test_what_does_not_exist_is_said_to(finder: InstalledOnly) -> None:
    """By Python itself."""
    with pytest.raises(ModuleNotFoundError, match="No module named 'own_imagination'"):
        importlib.import_module("own_imagination")


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


def test_a_function_that_asks_its_user_fails_and_the_next_call_works(client: Client) -> None:
    """It would wait for ever."""

    def ask(x: Any) -> Any:
        return x * float(input("scale? "))

    with pytest.raises(NotInteractive, match="no terminal"):
        client.persistent_call(ask)(1.0)
    assert float(client.persistent_call(lambda x: x * 2)(2.0)) == 4.0


def test_a_function_that_stops_at_a_breakpoint_fails_and_the_next_call_works(
    client: Client,
) -> None:
    """The message says how to debug it."""

    def stop(x: Any) -> Any:
        breakpoint()  # noqa: T100
        return x

    with pytest.raises(NotInteractive, match="JAXD_INLINE=1"):
        client.persistent_call(stop)(1.0)
    assert float(client.persistent_call(lambda x: x * 2)(3.0)) == 6.0


def test_a_local_module_that_a_function_imports_travels_with_it(
    client: Client, local: Path
) -> None:
    """Without being imported here, and the next call sees the next edit of it."""

    def use(x: Any) -> Any:
        import own_module  # type: ignore[import-not-found]

        return x * own_module.VALUE

    persistent = client.persistent_call(use)
    assert float(persistent(3.0)) == 3.0
    (local / "own_module.py").write_text("VALUE = 10\n")
    assert float(persistent(3.0)) == 30.0
    assert "own_module" not in sys.modules


@pytest.mark.slow
def test_a_function_cannot_make_the_server_import_a_local_module(
    start_live: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """One that its own process does not find, from a folder on the server's path."""
    (tmp_path / "own_module.py").write_text("VALUE = 1\n")

    def use(x: Any) -> Any:
        import own_module

        return x * own_module.VALUE

    live = start_live(PYTHONPATH=os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)]))
    with connect(live.unix) as client:
        persistent = client.persistent_call(use)
        with pytest.raises(ModuleNotFoundError, match="'own_module' is a local module"):
            persistent(1.0)


def test_a_function_can_use_what_is_installed(client: Client) -> None:
    """Imported in its body, too."""

    def use(x: Any) -> Any:
        import colorsys

        import jax.numpy as jnp

        return jnp.asarray(colorsys.rgb_to_hls(1.0, 0.0, 0.0)[1]) + x

    assert float(client.persistent_call(use)(1.0)) == 1.5
