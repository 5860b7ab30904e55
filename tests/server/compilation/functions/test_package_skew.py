from __future__ import annotations

import importlib
from typing import Any

import pytest

from jaxd_protocol.errors import MissingPackage, PackageMismatch
from jaxd_protocol.packages.distributions import Package, package_of, package_on_disk
from jaxd_server.compilation.functions.package_skew import (
    Difference,
    compare,
    dependency_changes,
    refuse_missing,
    refuse_or_warn,
)
from jaxd_server.runtime.imported_packages import Change
from tests.end_to_end.gates import advice
from tests.fake_packages import FakeSite
from tests.identity.projects import needs


def ours(module: str) -> Package:
    """A package of this process."""
    needs(module)
    package = package_of(module)
    assert package is not None
    return package


def difference(**packages: Package) -> Difference:
    """The only difference of a function `f`."""
    (only,) = compare("f", packages)
    return only


def test_a_package_is_told_once_where_it_is_another_one() -> None:
    """Whatever names a function reaches it by."""
    assert compare("f", {name: ours(name) for name in ("jax", "numpy", "haiku")}) == ()
    other = ours("jax")._replace(version="0")
    assert len(compare("f", {"jax": other, "jax.numpy": other})) == 1


def test_a_missing_package() -> None:
    """The text says what to type, and where."""
    found = difference(optocs=Package("optocs", "0.2.8", b""))
    assert found[:3] == ("f", "optocs", "missing")
    assert found.text == (
        "function 'f' needs optocs (client: 0.2.8), which is not installed on the server. "
        "Run: pip install optocs==0.2.8 where the server runs."
    )
    with pytest.raises(MissingPackage) as caught:
        refuse_missing([found])
    assert str(caught.value) == found.text
    assert caught.value.blame == "caller"


def test_missing_packages_without_one_name_or_any() -> None:
    """All that share a namespace are named, as they are; pip knows no module without metadata."""
    found = difference(shared_ns=Package("a, b", "1+cu12, 2", b""))
    assert "pip install a==1+cu12 b==2" in advice(found.text)
    found = difference(dropped=Package("dropped", "", b""))
    assert found.kind == "missing"
    assert "the module dropped" in found.text
    assert "pip" not in found.text


def test_another_version_or_other_files() -> None:
    """Both versions are named, and whose counts; files as after `pip install .` without another."""
    mine = ours("optax")
    found = difference(optax=mine._replace(version="0.0.1"))
    assert found.kind == "version"
    assert found.text == (
        f"function 'f' uses optax 0.0.1 here and {mine.version} on the server: results come from "
        "the server's."
    )
    found = difference(optax=mine._replace(digest=b"other"))
    assert found.kind == "files"
    assert "has other files on the server" in found.text


@pytest.mark.parametrize("imported", [False, True])
def test_what_was_seen_in_the_middle_of_an_installation_is_looked_at_again(
    site: FakeSite, imported: bool
) -> None:
    """Unless it is imported here as it was then."""
    (site.path / "skewed_halfway.py").write_text("")
    assert ours("skewed_halfway").version == ""
    if imported:
        importlib.import_module("skewed_halfway")
    site.install("skewed-halfway", "1.1", {"skewed_halfway.py": ""})
    theirs = package_on_disk("skewed_halfway")
    assert theirs is not None
    assert theirs.version == "1.1"
    assert len(compare("f", {"skewed_halfway": theirs})) == imported


def test_differences_are_warnings() -> None:
    """Each an event of the call."""
    found = difference(optax=ours("optax")._replace(version="0"))
    events: list[tuple[str, dict[str, Any]]] = []
    refuse_missing([found])
    refuse_or_warn([found], lambda kind, content: events.append((kind, content)), strict=False)
    content = {"function": "f", "package": "optax", "text": found.text}
    assert events == [("warning", content)]


def test_with_strict_differences_are_an_error() -> None:
    """All of them in one; where there is none, there is no error."""
    names = ("optax", "flax")
    found = compare("f", {name: ours(name)._replace(version="0") for name in names})
    events: list[Any] = []
    with pytest.raises(PackageMismatch, match=r"uses optax 0 .* uses flax 0 ") as caught:
        refuse_or_warn(found, lambda *event: events.append(event), strict=True)
    assert "strict=True" in advice(caught.value)
    refuse_or_warn((), lambda *event: events.append(event), strict=True)
    assert events == []


def test_a_dependency_that_is_run_in_an_old_state() -> None:
    """It is named with both versions, and what to do is another thing than to install one."""
    old = Package("lowlib", "1.0", b"")
    found = dependency_changes("f", [Change(old, old._replace(version="1.1"))])
    assert [(one.kind, one.package) for one in found] == [("dependency", "lowlib")]
    assert found[0].text.startswith("function 'f': dependency lowlib 1.0 → 1.1 where the server")
    with pytest.raises(PackageMismatch, match=r"lowlib 1\.0 → 1\.1") as caught:
        refuse_or_warn(found, lambda *event: None, strict=True)
    assert "jaxd restart --force" in advice(caught.value)
