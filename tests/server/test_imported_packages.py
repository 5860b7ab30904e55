from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from jaxd_protocol.packages import package_of
from jaxd_server.imported_packages import ImportedPackages
from tests.fake_packages import FakeSite


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSite:
    """A folder of installed packages from which this process imports."""
    site = FakeSite(tmp_path)
    monkeypatch.syspath_prepend(site.path)
    return site


def texts(packages: ImportedPackages) -> list[str]:
    """What changed."""
    return [change.text for change in packages.changes()]


def install(site: FakeSite, name: str, version: str) -> None:
    """A package with one module."""
    site.install(name, version, {f"{name}/__init__.py": f"VERSION = {version!r}"})


def test_what_is_imported_and_changes_is_told_again_and_again(site: FakeSite) -> None:
    """Until the process ends, it stays old."""
    install(site, "im_changes", "1")
    importlib.import_module("im_changes")
    packages = ImportedPackages()
    assert texts(packages) == []
    install(site, "im_changes", "2")
    for _ in range(2):
        assert texts(packages) == ["im_changes was changed from 1 to 2"]


def test_what_is_imported_later_counts_as_it_was_then(site: FakeSite) -> None:
    """Not as it was when somebody asked for its version before."""
    packages = ImportedPackages()
    install(site, "im_later", "1")
    assert package_of("im_later") is not None
    install(site, "im_later", "2")
    assert texts(packages) == []
    importlib.import_module("im_later")
    packages.note()
    assert texts(packages) == []
    install(site, "im_later", "3")
    assert texts(packages) == ["im_later was changed from 2 to 3"]


def test_what_is_not_imported_may_change(site: FakeSite) -> None:
    """It is looked at when it is asked for."""
    packages = ImportedPackages()
    install(site, "im_never", "1")
    assert package_of("im_never") is not None
    install(site, "im_never", "2")
    assert texts(packages) == []
    found = package_of("im_never")
    assert found is not None
    assert found.version == "2"


def test_a_namespace_is_not_old(site: FakeSite) -> None:
    """Only what is imported from it."""
    files = {f"im-{name}": {f"im_shared/{name}.py": ""} for name in ("a", "b")}
    for name, content in files.items():
        site.install(name, "1", content)
    importlib.import_module("im_shared.a")
    packages = ImportedPackages()
    assert texts(packages) == []
    site.install("im-b", "2", files["im-b"])
    assert texts(packages) == []
    site.install("im-a", "2", files["im-a"])
    assert texts(packages) == ["im-a was changed from 1 to 2"]


def test_looking_again_asks_for_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that were seen are not looked at again."""
    packages = ImportedPackages()
    packages.note()
    asked: list[str] = []

    def note_root(name: str) -> str:
        asked.append(name)
        return name

    monkeypatch.setattr("jaxd_server.imported_packages.import_root", note_root)
    packages.note()
    assert asked == []
    monkeypatch.setitem(sys.modules, "im_new_module", sys)
    packages.note()
    assert asked == ["im_new_module"]
