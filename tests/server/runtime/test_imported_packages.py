from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from jaxd_protocol.packages.distributions import package_of
from jaxd_server.runtime.imported_packages import ImportedPackages
from tests.fake_packages import FakeSite

if TYPE_CHECKING:
    import pytest


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


def test_what_is_not_imported_may_change(site: FakeSite) -> None:
    """It is looked at when it is asked for; once imported, it counts as it was then."""
    packages = ImportedPackages()
    install(site, "im_never", "1")
    assert package_of("im_never") is not None
    install(site, "im_never", "2")
    assert texts(packages) == []
    found = package_of("im_never")
    assert found is not None
    assert found.version == "2"
    packages = ImportedPackages()
    install(site, "im_later", "1")
    assert package_of("im_later") is not None
    install(site, "im_later", "2")
    assert texts(packages) == []
    importlib.import_module("im_later")
    packages.record()
    assert texts(packages) == []
    install(site, "im_later", "3")
    assert texts(packages) == ["im_later was changed from 2 to 3"]


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


def test_a_second_name_of_a_module_does_not_count(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has not loaded it finds nothing by that name, and it is not missing there."""
    site.install("im-inner", "1", {"im_inner/__init__.py": "", "im_inner/_part.py": ""})
    part = importlib.import_module("im_inner._part")
    monkeypatch.setitem(sys.modules, "_im_part", part)
    packages = ImportedPackages()
    packages.record()
    roots = [root for root, _ in packages.imported()]
    assert "im_inner" in roots
    assert "_im_part" not in roots


def test_looking_again_asks_for_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that were seen are not looked at again."""
    packages = ImportedPackages()
    packages.record()
    asked: list[str] = []

    def note_root(name: str) -> str:
        asked.append(name)
        return name

    monkeypatch.setattr("jaxd_server.runtime.imported_packages.import_root", note_root)
    packages.record()
    assert asked == []
    monkeypatch.setitem(sys.modules, "im_new_module", ModuleType("im_new_module"))
    packages.record()
    assert asked == ["im_new_module"]


def test_what_another_process_has_imported_is_noted_as_well(site: FakeSite) -> None:
    """So that a change of it is noticed, also when it came before this process had looked."""
    files = {"im_there.py": ""}
    site.install("im-there", "1", files)
    site.install("im-late", "1", {"im_late.py": ""})
    packages = ImportedPackages()
    there, late = package_of("im_there"), package_of("im_late")
    assert there is not None
    assert late is not None
    packages.adopt([("im_there", there), ("im_there", there)])
    packages.adopt([("im_late", late._replace(version="0"))])
    assert ("im_there", there) in packages.imported()
    assert texts(packages) == ["im-late was changed from 0 to 1"]
    site.install("im-there", "2", files)
    assert "im-there was changed from 1 to 2" in texts(packages)


def test_two_processes_that_have_imported_different_states_are_told_apart(site: FakeSite) -> None:
    """Whichever has the old one; the change is told as it came, and once, whoever noticed it."""
    install(site, "im_mine", "1")
    importlib.import_module("im_mine")
    packages = ImportedPackages()
    assert texts(packages) == []
    mine = package_of("im_mine")
    assert mine is not None
    packages.adopt([("im_mine", mine)])
    assert texts(packages) == []
    packages.adopt([("im_mine", mine._replace(version="0"))])
    assert texts(packages) == ["im_mine was changed from 0 to 1"]
    install(site, "im_older", "1")
    importlib.import_module("im_older")
    packages = ImportedPackages()
    packages.record()
    mine = package_of("im_older")
    assert mine is not None
    install(site, "im_older", "2")
    packages.adopt([("im_older", mine._replace(version="2"))])
    assert texts(packages) == ["im_older was changed from 1 to 2"]
