"""Which files belong to a package, and what they compile to."""

from __future__ import annotations

import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.local_archives import files_of, source_of
from tests.shared.pickling.processes import write


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


def test_a_module_is_one_file(folder: Path) -> None:
    """What lies beside it is another module."""
    write(folder, {"some_single.py": "", "some_other.py": ""})
    assert files_of("some_single") == {"some_single": str(folder / "some_single.py")}


@pytest.mark.parametrize("name", ["__main__", "sys", "there_is_no_such_module"])
def test_what_has_no_file_is_no_package(name: str) -> None:
    """A script, a module written in C, and nothing at all."""
    assert files_of(name) == {}


def test_a_compiled_extension_is_refused_with_its_file(folder: Path) -> None:
    """It cannot run from source."""
    write(folder, {"some_fast/__init__.py": "", f"some_fast/core{EXTENSION_SUFFIXES[0]}": ""})
    with pytest.raises(PackingError, match=r"some_fast/core\S+ is a compiled extension"):
        files_of("some_fast")


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


@pytest.mark.parametrize("text", ["not Python at all", "a\0b"])
def test_a_file_that_cannot_be_imported_has_no_source(tmp_path: Path, text: str) -> None:
    """A template, say, that lies in the package."""
    (tmp_path / "it.py").write_text(text)
    assert source_of(str(tmp_path / "it.py")) is None
    assert source_of(str(tmp_path / "gone.py")) is None
