"""Packages that arrive as source: run once, seen by nobody else."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.data_model import Archive, Source
from jaxd_protocol.fingerprint.local_archives import archive_of, archived_id
from jaxd_protocol.pickling.pack.modules import archive_arguments
from jaxd_protocol.pickling.unpack.archives import (
    UnpackedArchive,
    add_archive,
    archived_content_id,
    find_archived,
)
from jaxd_protocol.pickling.unpack.private_modules import NotShipped, PrivateModules

FILES = {
    "some_shop": "from . import base\nRUNS = []\n",
    "some_shop.base": """
from __future__ import annotations
import importlib, sys
from dataclasses import dataclass
from jaxd import persistent_call
VERSION = 1
@dataclass
class Params:
    w: int
@persistent_call
def step(x): return x + VERSION
@persistent_call(static_argnums=0)
def other(x): return x
def load(name): return importlib.import_module("." + name, __package__)
def direct(name): return importlib.import_module(name)
def me(): return sys.modules[__name__]
""",
    "some_shop.late": "from . import RUNS\nRUNS.append(1)\n",
}


def shop_archive(**changes: str) -> Archive:
    """The package, with other texts in some modules."""
    files = FILES | {f"some_shop.{name}": text for name, text in changes.items()}
    return archive_of(
        {
            name: Source(
                compile(text, f"{name}.py", "exec", dont_inherit=True), name == "some_shop"
            )
            for name, text in files.items()
        }
    )


@pytest.fixture
def blob() -> PrivateModules:
    """A function's, that the package came with."""
    blob = PrivateModules()
    add_archive(blob, *archive_arguments(shop_archive()))
    return blob


def find(blob: PrivateModules, module: str, name: str) -> Any:
    """As packed bytes do it."""
    assert isinstance(blob.arrived, UnpackedArchive)
    return find_archived(blob.arrived.archive.content, module, name)


def test_a_module_runs_once_and_is_not_in_the_servers_table(blob: PrivateModules) -> None:
    """Whoever asks for it, by whatever name."""
    load = find(blob, "some_shop.base", "load")
    assert load("late") is load("late") is find(blob, "some_shop.late", "")
    assert find(blob, "some_shop", "RUNS") == [1]
    assert not any(name.startswith("some_shop") for name in sys.modules)


def test_a_second_function_gets_the_same_archive(blob: PrivateModules) -> None:
    """So its classes are the same."""
    other = PrivateModules()
    add_archive(other, *archive_arguments(shop_archive()))
    assert other.arrived is blob.arrived


def test_two_versions_live_side_by_side(blob: PrivateModules) -> None:
    """Each has modules of its own."""
    other = PrivateModules()
    add_archive(other, *archive_arguments(shop_archive(late="NEW = 2\n")))
    assert find(other, "some_shop.late", "NEW") == 2
    assert find(other, "some_shop.base", "Params") is not find(blob, "some_shop.base", "Params")


def test_a_module_finds_itself_in_the_table_of_modules(blob: PrivateModules) -> None:
    """`sys.modules[__name__]` is its private one."""
    assert find(blob, "some_shop.base", "me")() is find(blob, "some_shop.base", "")


def test_persistent_functions_are_plain_ones(blob: PrivateModules) -> None:
    """A server must not call itself."""
    assert find(blob, "some_shop.base", "step")(1) == 2
    assert find(blob, "some_shop.base", "other").__qualname__ == "other"


def test_installed_modules_are_the_servers(blob: PrivateModules) -> None:
    """And what is in neither place is named."""
    direct = find(blob, "some_shop.base", "direct")
    assert direct("json") is sys.modules["json"]
    with pytest.raises(NotShipped, match="no module named 'not_here' came with this function"):
        direct("not_here")


def test_code_by_value_imports_from_the_archive(blob: PrivateModules) -> None:
    """Through the builtins that it has."""
    found: dict[str, Any] = {"__builtins__": blob.builtins}
    exec("import some_shop.late\nfrom importlib import import_module as get", found)
    assert found["some_shop"] is find(blob, "some_shop", "")
    assert found["get"]("some_shop.late") is find(blob, "some_shop.late", "")


def test_what_was_asked_for_has_a_name(blob: PrivateModules) -> None:
    """The server's walk says it as the client's did."""
    assert isinstance(blob.arrived, UnpackedArchive)
    params = find(blob, "some_shop.base", "Params")
    assert blob.arrived.name_of(params) == ("some_shop.base", "Params")
    assert blob.arrived.name_of(object()) is None


def test_a_class_has_an_id_by_which_its_client_finds_its_own(blob: PrivateModules) -> None:
    """Also one that nobody has asked for by name."""
    assert isinstance(blob.arrived, UnpackedArchive)
    content = archived_id(blob.arrived.archive.content, ("some_shop.base", "Params"))
    assert archived_content_id(vars(find(blob, "some_shop.base", ""))["Params"]) == content
    assert archived_content_id(dict) is None


def test_a_name_that_the_source_does_not_make_is_an_error(blob: PrivateModules) -> None:
    """It was put there at run time."""
    with pytest.raises(PackingError, match="does not make added"):
        find(blob, "some_shop.base", "added")


def test_an_archive_goes_with_the_last_that_came_with_it() -> None:
    """Nothing of an old version stays."""
    blob = PrivateModules()
    add_archive(blob, *archive_arguments(shop_archive(late="GONE = 1\n")))
    assert isinstance(blob.arrived, UnpackedArchive)
    content = blob.arrived.archive.content
    del blob
    gc.collect()
    with pytest.raises(PackingError, match="the server does not have"):
        find_archived(content, "some_shop", "")


def test_an_archive_must_be_what_it_is_named_by() -> None:
    """A name that does not fit would let one client's code stand for another's."""
    _, sources, packages = archive_arguments(shop_archive())
    with pytest.raises(PackingError, match="not what it is named by"):
        add_archive(PrivateModules(), bytes(16), sources, packages)
