"""What an archive holds, and which objects it makes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.fingerprint import PackedFor, content_id, current_packing, packing_for
from jaxd_protocol.fingerprint.data_model import Source
from jaxd_protocol.fingerprint.local_archives import (
    LocalArchives,
    archive_of,
    archived_id,
    files_of,
    imported_names,
    packages_in_strings,
    source_of,
)
from jaxd_protocol.packages.distributions import Package
from tests.shared.pickling.processes import write

SHOP = """
import math
import numpy as np
REGISTRY = {"f": len}
PLAIN = {"lr": 1}
ARRAY = np.zeros(2)
OBJECT = object()
def f(): pass
def make():
    def inner(): pass
    return inner
made = make()
class C:
    def m(self): pass
    @staticmethod
    def s(): pass
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package of the user's own, imported."""
    write(
        tmp_path, {"some_shop/__init__.py": SHOP, "some_shop/layer.py": "from some_far import x\n"}
    )
    write(tmp_path, {"some_far.py": "x = 1\n"})
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("some_shop")
    for name in [name for name in sys.modules if name.startswith(("some_shop", "some_far"))]:
        del sys.modules[name]


@pytest.fixture
def archives(shop: Any) -> LocalArchives:
    """With that package in it."""
    found = LocalArchives()
    assert found.has("some_shop", is_local=True)
    return found


def source(text: str, is_package: bool = False) -> Source:
    return Source(compile(text, "it.py", "exec", dont_inherit=True), is_package)


def test_objects_at_module_level_have_names(archives: LocalArchives, shop: Any) -> None:
    """Functions, classes, what is in them, modules, and objects that do not know their name."""
    found = {archives.name_of(each) for each in (shop, shop.f, shop.C, shop.C.m, shop.C.s)}
    assert found == {("some_shop", name) for name in ("", "f", "C", "C.m", "C.s")}
    assert archives.name_of(shop.REGISTRY) == ("some_shop", "REGISTRY")
    assert archives.name_of(shop.OBJECT) == ("some_shop", "OBJECT")


@pytest.mark.parametrize("name", ["PLAIN", "ARRAY", "math", "np"])
def test_data_and_what_is_installed_have_none(
    archives: LocalArchives, shop: Any, name: str
) -> None:
    """Data goes along as it is now, installed things are named as such."""
    assert archives.name_of(getattr(shop, name)) is None


def test_what_was_made_by_a_function_has_none_unless_a_module_holds_it(
    archives: LocalArchives, shop: Any
) -> None:
    """A closure goes by value."""
    assert archives.name_of(shop.make()) is None


def test_importlib_has_a_name(archives: LocalArchives) -> None:
    """The server gives the code of an archive another one."""
    assert archives.name_of(importlib) == ("importlib", "")
    assert archives.name_of(importlib.import_module) == ("importlib", "import_module")


def test_a_closed_archive_takes_no_more(shop: Any) -> None:
    """Its content is the name of all that it holds."""
    archives = LocalArchives()
    archives.close()
    assert not archives.has("some_shop", is_local=True)


def test_what_is_not_local_is_not_archived() -> None:
    """It is installed on the server."""
    assert not LocalArchives().has("numpy", is_local=False)


def test_imported_classes_are_found_by_their_id(archives: LocalArchives, shop: Any) -> None:
    """As results name them."""
    archives.close()
    name = archived_id(archives.archive.content, ("some_shop", "C"))
    assert archives.objects()[name] is shop.C


def test_content_leaves_out_comments_and_places() -> None:
    """And has the code, the name, whether it is a package, and what is installed."""
    plain = archive_of({"a": source("x = 1\n")}).content
    assert archive_of({"a": source("# why\n\nx = 1\n")}).content == plain
    one, other = (archive_of({"a": source(f"'{text}'\nx = 1\n")}) for text in ("why", "how"))
    assert one.content == other.content
    others = [
        archive_of({"a": source("x = 2\n")}),
        archive_of({"b": source("x = 1\n")}),
        archive_of({"a": source("x = 1\n", is_package=True)}),
        archive_of({"a": source("x = 1\n")}, (Package("p", "1", b""),)),
    ]
    assert len({plain, *(other.content for other in others)}) == 5


def test_the_names_in_import_statements_are_read() -> None:
    """Absolute and relative ones, and constant names in calls."""
    text = "import a.b\nfrom . import c\nfrom ..d import e\nimport_module('f.g')\n"
    found = list(imported_names("top.sub.it", source(text)))
    assert found == ["a.b", "top.sub", "top.sub.c", "top.d", "top.d.e", "f.g"]


def test_texts_are_hints_only_where_imports_are_computed() -> None:
    """Such as the part before the name of a plug-in."""
    text = "def f(n): return import_module(f'shop.plugins.{n}') or 'os.path'\n"
    assert packages_in_strings(source(text).code) == {"shop"}
    assert packages_in_strings(source("'shop.plugins.'\nf('shop.x')\n").code) == set()


def test_content_ids_depend_on_how_the_function_travels(archives: LocalArchives, shop: Any) -> None:
    """The same class is another one on the server when it is made by its source."""
    archives.close()
    by_value = content_id(shop.C)
    with packing_for(PackedFor(archives)):
        assert current_packing().archives is archives
        assert content_id(shop.C) != by_value
    assert content_id(shop.C) == by_value
    assert current_packing().archives is None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that modules are imported from."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_package_has_all_modules_below_its_folder(folder: Path) -> None:
    """Also those in folders without an `__init__.py`; data and caches are no modules."""
    names = ["__init__.py", "a.py", "sub/b.py", "__pycache__/c.py", "not-a-name.py", "data.txt"]
    write(folder, {f"some_shop/{name}": "" for name in names})
    assert list(files_of("some_shop")) == ["some_shop", "some_shop.a", "some_shop.sub.b"]


@pytest.mark.parametrize("name", ["__main__", "sys", "there_is_no_such_module"])
def test_what_has_no_file_is_no_package(name: str) -> None:
    """A script, a module written in C, and nothing at all."""
    assert files_of(name) == {}


def test_a_file_is_compiled_again_when_it_has_changed(tmp_path: Path) -> None:
    """Its time and size say so."""
    file = tmp_path / "it.py"
    file.write_text("x = 1\n")
    first = source_of(str(file))
    assert source_of(str(file)) is first
    file.write_text("x = 2\n")
    os.utime(file, ns=(1, 1))
    again = source_of(str(file))
    assert first is not None
    assert again is not None
    assert again.code.co_consts != first.code.co_consts
