from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from jaxd_protocol.packages.distributions import package_of
from jaxd_server.runtime.imported_packages import Change, ImportedPackages
from tests.fake_packages import FakeSite


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


# which packages a program may have run, by the names that its function has ----------------------

LOW = {"ig-low": {"ig_low/__init__.py": "K = 1", "ig_low/sub.py": "K = 2"}}
OTHER = {"ig-other": {"ig_other.py": "import ig_low"}}

IMPORTS: Mapping[str, str] = {
    "at its top": "import ig_low",
    "under a name": "import ig_low.sub as low",
    "of a value": "from ig_low import K",
    "of a value of a submodule": "from ig_low.sub import K",
    "of several": "import sys, ig_low as low, json",
    "over several lines": "import sys, \\\n    ig_low",
    "on a line with others": "import sys; import ig_low",
    "that may fail": "try: import ig_low\nexcept ImportError: pass",
    "of what is deleted then": "import ig_low\nK = ig_low.K\ndel ig_low",
    "inside of a function": "def scale(x):\n    import ig_low\n    return x * ig_low.K",
    "inside of a method": "class A:\n    def scale(self, x):\n        from ig_low.sub import K\n",
    "by a name in quotes": "import importlib\nlow = importlib.import_module('ig_low.sub').K",
    "by a computed name": "import importlib as i\nlow = i.import_module('_'.join(['ig', 'low']))",
    "of a class": "low = __import__('ig_' + 'low').__dict__",
}


@pytest.mark.parametrize("how", sorted(IMPORTS))
def test_an_import(site: FakeSite, how: str) -> None:
    """Whatever way it is written, it counts as far as the module is loaded."""
    source = IMPORTS[how]
    site.install("ig-low", "1", LOW["ig-low"])
    site.install("ig-other", "1", OTHER["ig-other"])
    if how == "of a class":
        source = "low = type('C', (), {'__module__': 'ig_' + 'low'})"
    site.install("ig-high", "1", {"ig_high/__init__.py": "", "ig_high/_part.py": source})
    importlib.import_module("ig_high._part")
    importlib.import_module("ig_other")
    importlib.import_module("ig_low.sub")
    assert reached(["ig_high"]) == {"ig_high", "ig_low"}
    assert reached(["ig_high.whatever"]) == {"ig_high", "ig_low"}
    assert reached(["ig_low"]) == {"ig_low"}
    assert reached(["json", "nowhere"]) == set()


def reached(names: list[str] | None, *data: bytes) -> set[str]:
    """The packages of this file's tests among the dependencies."""
    found = ImportedPackages().dependencies(names, data)
    return {root for root, _ in found if root.startswith("ig_")}


def test_what_is_not_loaded_was_not_run(site: FakeSite) -> None:
    """It counts from when it is."""
    site.install("ig-low", "1", LOW["ig-low"])
    site.install("ig-high", "1", {"ig_high.py": "def f():\n    import ig_low"})
    packages = ImportedPackages()
    importlib.import_module("ig_high")
    assert [root for root, _ in packages.dependencies(["ig_high"]) if "ig_" in root] == ["ig_high"]
    importlib.import_module("ig_low")
    names = [root for root, _ in packages.dependencies(["ig_high"]) if "ig_" in root]
    assert names == ["ig_high", "ig_low"]


def test_a_chain(site: FakeSite) -> None:
    """A dependency of a dependency counts, and a circle ends."""
    for one, other in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")):
        site.install(f"ig-{one}", "1", {f"ig_{one}.py": f"def f():\n    import ig_{other}"})
        importlib.import_module(f"ig_{one}")
    assert reached(["ig_b"]) == {"ig_a", "ig_b", "ig_c"}


def test_namespaces(site: FakeSite) -> None:
    """Each package in one counts for itself; who names the namespace alone may mean any."""
    for name in ("a", "b"):
        site.install(f"ig-space-{name}", "1", {f"ig_space/{name}/__init__.py": ""})
        importlib.import_module(f"ig_space.{name}")
    site.install("ig-high", "1", {"ig_high.py": "import ig_space.a"})
    site.install("ig-wide", "1", {"ig_wide.py": "from ig_space import a"})
    importlib.import_module("ig_high")
    importlib.import_module("ig_wide")
    assert reached(["ig_high"]) == {"ig_high", "ig_space.a"}
    assert reached(["ig_wide"]) == {"ig_wide", "ig_space.a", "ig_space.b"}
    assert reached(["ig_space.b"]) == {"ig_space.b"}


def test_a_module_without_a_source(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it imports cannot be seen: all counts that its distribution says it needs."""
    site.install("ig-low", "1", LOW["ig-low"])
    site.install("ig-other", "1", OTHER["ig-other"])
    info = site.install("ig-high", "1", {"ig_high.py": "", "ig_high.dat": ""})
    text = (info / "METADATA").read_text()
    needs = "Requires-Dist: IG.Low >=1 ; extra == 'x'\n\nRequires-Dist: ig-other\n"
    (info / "METADATA").write_text(text.partition("\n\n")[0] + "\n" + needs)
    for name in ("ig_low", "ig_other", "ig_high"):
        importlib.import_module(name)
    module = sys.modules["ig_high"]
    assert module.__spec__ is not None
    monkeypatch.setattr(module, "__file__", str(site.path / "ig_high.dat"))
    monkeypatch.setattr(module.__spec__, "origin", str(site.path / "ig_high.dat"))
    assert reached(["ig_high"]) == {"ig_high", "ig_low"}


def test_packed_arguments_name_packages(site: FakeSite) -> None:
    """As the code does; code whose imports are not known may have run all."""
    for files in (LOW, OTHER):
        for name, content in files.items():
            site.install(name, "1", content)
            importlib.import_module(name.replace("-", "_"))
    assert reached([], b"\x8c\x0aig_low.sub") == {"ig_low"}
    assert reached(None) == {"ig_low", "ig_other"}


def test_what_is_not_installed_imports_packages_too(
    site: FakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts by nothing, but what it leads to does: an editable installation of the server's."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ig_beside.py").write_text("import ig_low")
    site.install("ig-low", "1", LOW["ig-low"])
    importlib.import_module("ig_beside")
    assert reached(["ig_beside"]) == {"ig_low"}


def test_what_was_built_elsewhere_counts_as_it_was_imported_here(site: FakeSite) -> None:
    """Once it is: the other process may have had another state of it."""
    site.install("ig-low", "1", LOW["ig-low"])
    old = package_of("ig_low")
    assert old is not None
    packages = ImportedPackages()
    packages.adopt([("ig_low", old)])
    assert packages.changes() == []
    site.install("ig-low", "2", LOW["ig-low"])
    (change,) = packages.changes()
    assert change == Change(old, old._replace(version="2"))
    importlib.import_module("ig_low")
    (found,) = (package for root, package in packages.dependencies(["ig_low"]) if root == "ig_low")
    assert found == change.new
    assert packages.changes_of((("ig_low", found),)) == []


def test_jax_counts_with_what_computes(site: FakeSite) -> None:
    """And with none of the tools that it would use to print a table."""
    found = {root for root, _ in ImportedPackages().dependencies([])}
    assert found >= {"jax", "jaxlib", "numpy"}
    assert found <= {"jax", "jaxlib", "numpy", "ml_dtypes", "scipy", "opt_einsum"}


def test_changes_of_dependencies(site: FakeSite) -> None:
    """Only those that `changes` has found, also while the files are away, until they are back."""
    site.install("ig-low", "1", LOW["ig-low"])
    site.install("ig-other", "1", {"ig_other.py": ""})
    importlib.import_module("ig_low")
    importlib.import_module("ig_other")
    packages = ImportedPackages()
    low, other = (packages.dependencies([name]) for name in ("ig_low", "ig_other"))
    (old,) = (package for root, package in low if root == "ig_low")
    site.uninstall("ig-low")
    assert packages.changes_of(low) == []
    assert packages.changes() == packages.changes_of(low) == [Change(old, None)]
    assert packages.have_changed
    site.install("ig-low", "2", LOW["ig-low"])
    assert packages.changes_of(low) == [Change(old, old._replace(version="2"))]
    assert packages.changes_of(other) == []
    new = (("ig_low", old._replace(version="2")),)  # of another process
    assert packages.changes_of(new) == []
    site.install("ig-low", "3", LOW["ig-low"])
    assert packages.changes() == [Change(old, old._replace(version="3"))]
    assert packages.changes_of(new) == [Change(new[0][1], old._replace(version="3"))]
    site.install("ig-low", "1", LOW["ig-low"])
    assert packages.changes() == packages.changes_of(low) == []
    assert packages.changes_of(new) == [Change(new[0][1], old)]
