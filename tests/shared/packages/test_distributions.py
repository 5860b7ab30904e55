"""Which distribution a module belongs to, and what has changed of it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from jaxd_protocol.packages.distributions import (
    Package,
    changed_since_first_seen,
    describe,
    describe_change,
    digest_of_files,
    digest_of_record,
    import_root,
    owners,
    package_of,
    still_current,
)
from tests.fake_packages import FakeSite
from tests.identity.projects import needs
from tests.ids import row


def known(module: str) -> Package:
    """The package of a module that has one."""
    package = package_of(module)
    assert package is not None
    return package


def touch(info: Path) -> None:
    """Gives a RECORD another time, as an installation does."""
    os.utime(info / "RECORD", ns=(1, 1))


# which --------------------------------------------------------------------------------------------


def test_it_names_the_distribution_as_pip_does() -> None:
    """Also where the import has another name, and where nothing was imported."""
    rows: list[tuple[str, str]] = [
        ("jax", "jax"),
        ("jax.numpy", "jax"),
        ("jaxlib", "jaxlib"),
        ("jaxlib._jax.pytree", "jaxlib"),
        ("numpy.linalg", "numpy"),
        ("optax", "optax"),
        ("haiku", "dm-haiku"),
        ("absl.logging", "absl-py"),
        ("gin", "gin-config"),
        ("typing_extensions", "typing_extensions"),
        ("google.protobuf", "protobuf"),
    ]
    for module, distribution in rows:
        with row((module, distribution)):
            needs(module.partition(".")[0])
            package = known(module)
            assert package.name.lower() == distribution
            assert package.version == metadata.version(distribution)
            assert len(package.digest) == 16


@pytest.mark.parametrize("module", ["os", "os.path", "sys", "json.decoder", "not_installed.at_all"])
def test_the_rest_has_no_package(module: str) -> None:
    """The standard library, and what is not there."""
    assert package_of(module) is None


@pytest.mark.parametrize(
    "module", ["__main__", __name__, "tests", "jaxd_protocol.packages.distributions"]
)
def test_what_is_not_installed_has_no_package(module: str) -> None:
    """What the user writes, and our own working tree."""
    assert package_of(module) is None


def test_an_import_hook_or_pth_file_does_not_install(
    site: FakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable installation has a description, but the module is the user's."""
    site.install("editable-thing", "1", {"__editable__.editable_thing.pth": str(tmp_path)})
    (tmp_path / "editable_thing.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert package_of("editable_thing") is None


def test_a_copy_of_a_working_tree_is_installed(site: FakeSite) -> None:
    """`pip install .` copies; another copy under the same version is another package."""
    info = site.install("local_copy", "0.1", {"local_copy.py": "1"})
    (info / "direct_url.json").write_text('{"dir_info": {}, "url": "file:///home/me/copy"}')
    before = known("local_copy")
    touch(site.install("local_copy", "0.1", {"local_copy.py": "2"}))
    assert changed_since_first_seen() == [(before, known("local_copy"))]
    assert known("local_copy").version == "0.1"


def test_nothing_is_imported_and_little_is_loaded() -> None:
    """A client asks before its first call."""
    needs("google")
    code = (
        "import sys; from jaxd_protocol.packages.distributions import package_of;"
        "assert package_of('jax') and package_of('numpy') and package_of('google.protobuf');"
        "heavy = {'jax', 'numpy', 'google', 'importlib.metadata', 'email', 'csv', 'zipfile'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_module_without_metadata_is_known_by_its_files(site: FakeSite) -> None:
    """It travels by name, so a change of it must show."""
    path = site.path / "dropped_in.py"
    path.write_text("1")
    before = known("dropped_in")
    assert before[:2] == ("dropped_in", "")
    path.write_text("12")
    assert changed_since_first_seen() == [(before, known("dropped_in"))]


# namespaces ---------------------------------------------------------------------------------------


def test_a_namespace_belongs_to_all_who_share_it(site: FakeSite) -> None:
    """A module in it belongs to one of them."""
    site.install("shared-a", "1", {"shared_ns/a/__init__.py": "", "shared_ns/a/x.py": ""})
    site.install("shared-b", "2", {"shared_ns/deep/b.py": ""})
    assert known("shared_ns.a.x") == known("shared_ns.a")
    assert known("shared_ns.a").name == "shared-a"
    assert known("shared_ns.deep.b").name == "shared-b"
    both = known("shared_ns")
    assert both[:2] == ("shared-a, shared-b", "1, 2")
    assert both.digest == known("shared_ns.a").digest + known("shared_ns.deep.b").digest
    assert "shared_ns" not in sys.modules


@pytest.mark.parametrize("imported", [False, True])
def test_the_root_of_an_import_has_one_owner(site: FakeSite, imported: bool) -> None:
    """The shortest name that is not a namespace; imported or not."""
    name = f"rooted_{imported}".lower()
    site.install(name, "1", {f"{name}/deep/pkg/__init__.py": "", f"{name}/deep/pkg/m.py": ""})
    if imported:
        importlib.import_module(f"{name}.deep.pkg.m")
    assert import_root(f"{name}.deep.pkg.m") == f"{name}.deep.pkg"
    assert import_root(f"{name}.deep") == f"{name}.deep"
    assert import_root("jax.numpy.linalg") == "jax"
    assert import_root("not_installed.at_all") == "not_installed"


# changes ------------------------------------------------------------------------------------------


def test_what_was_seen_first_is_told_until_the_change_is(site: FakeSite) -> None:
    """The code in memory is the old one; a change is told once."""
    site.install("upgraded", "1.0", {"upgraded/__init__.py": "", "upgraded/sub.py": ""})
    old = known("upgraded.sub")
    assert still_current(old)
    site.install("upgraded", "1.1", {"upgraded/__init__.py": "", "upgraded/sub.py": "new"})
    assert known("upgraded.sub") == known("upgraded") == old
    assert not still_current(old)
    (change,) = changed_since_first_seen()
    assert change == (old, known("upgraded.sub"))
    assert known("upgraded").version == "1.1"
    assert changed_since_first_seen() == []
    assert still_current(known("upgraded"))


def test_the_same_installed_again_is_no_change(site: FakeSite) -> None:
    """`pip install --force-reinstall` writes the same rows."""
    site.install("again", "1", {"again.py": ""})
    package = known("again")
    touch(site.install("again", "1", {"again.py": ""}))
    assert not still_current(package)
    assert changed_since_first_seen() == []
    assert still_current(known("again"))


def test_what_is_gone_is_told(site: FakeSite) -> None:
    """And what comes back is found."""
    site.install("goes", "1", {"goes.py": ""})
    package = known("goes")
    site.uninstall("goes")
    assert changed_since_first_seen() == [(package, None)]
    assert package_of("goes") is None
    site.install("goes", "2", {"goes.py": ""})
    assert known("goes").version == "2"


def test_what_was_missing_is_looked_for_again(site: FakeSite) -> None:
    """Somebody may have followed the advice to install it."""
    assert package_of("comes") is None
    site.install("comes", "1", {"comes.py": ""})
    assert known("comes").version == "1"


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (Package("p", "2", b"2"), "p was changed from 1 to 2"),
        (Package("p", "1", b"2"), "p 1 was installed again with other files"),
        (Package("p", "", b"2"), "p was changed from 1 to no version"),
        (None, "p 1 is no longer installed"),
    ],
)
def test_a_change_in_words(new: Package | None, text: str) -> None:
    """Which package, and from what to what."""
    assert describe_change(Package("p", "1", b"1"), new) == text


def test_a_stranger_is_not_current() -> None:
    """Nothing is known of its files."""
    assert not still_current(Package("stranger", "1", b""))


def names(site: FakeSite, inside: str) -> list[str]:
    """The distributions that own a path."""
    return [describe(one)[0] for one in owners(str(site.path), inside)]


# whose is it --------------------------------------------------------------------------------------


def test_the_owner_has_the_row_of_the_file(site: FakeSite) -> None:
    """Whatever it is called: sklearn comes from scikit-learn."""
    site.install("scikit-learn", "1.9", {"sklearn/__init__.py": "", "alone.py": ""})
    site.install("other", "2.0", {"other/__init__.py": "", "other/sklearn/__init__.py": ""})
    assert names(site, "sklearn/__init__.py") == ["scikit-learn"]
    assert names(site, "alone.py") == ["scikit-learn"]
    assert names(site, "nobody.py") == []


def test_a_name_alone_owns_nothing(site: FakeSite) -> None:
    """A distribution that is called as the module but did not put it there is not its owner."""
    site.install("thing", "1", {"else.py": ""})
    site.install("maker-of-many", "1", {"thing/__init__.py": ""})
    assert names(site, "thing/__init__.py") == ["maker-of-many"]


def test_of_versions_left_behind_the_newest_counts(site: FakeSite) -> None:
    """An interrupted installation leaves two descriptions of one package."""
    left = site.install("thing", "2", {"thing.py": ""})
    os.rename(left, site.path / "kept")
    new = site.install("thing", "1", {"thing.py": ""})
    os.rename(site.path / "kept", left)
    os.utime(left / "RECORD", (1, 1))
    assert [one.path for one in owners(str(site.path), "thing.py")] == [str(new), str(left)]


@pytest.mark.parametrize("kind", ["file", "folder", "listed"])
def test_metadata_without_record(site: FakeSite, kind: str) -> None:
    """As the packages of Debian have it: the name, or a list of modules, must do."""
    (site.path / "thing.py").touch()
    headers = "Metadata-Version: 2.1\nName: Thing\nVersion: 3.1\n\nVersion: 4\n"
    if kind == "file":
        (site.path / "Thing-3.1.egg-info").write_text(headers)
    else:
        folder = site.path / ("Thing-3.1.egg-info" if kind == "folder" else "py_th-3.1.dist-info")
        folder.mkdir()
        (folder / ("PKG-INFO" if kind == "folder" else "METADATA")).write_text(headers)
        if kind == "listed":
            (folder / "top_level.txt").write_text("thing\n")
    (found,) = owners(str(site.path), "thing.py")
    assert found.record is None
    assert describe(found) == ("Thing", "3.1")
    assert owners(str(site.path), "other.py") == []


# what is installed --------------------------------------------------------------------------------


def test_without_headers_the_folder_says_name_and_version(site: FakeSite) -> None:
    """The last resort."""
    info = site.install("some-thing", "1.5", {"thing.py": ""})
    (info / "METADATA").unlink()
    (found,) = owners(str(site.path), "thing.py")
    assert describe(found) == ("some_thing", "1.5")


def test_two_environments_with_one_wheel_agree(tmp_path: Path) -> None:
    """Scripts, compiled files and metadata are the environment's, and so is the order of rows."""
    digests = set()
    for which in ("a", "b"):
        files = {"thing/__init__.py": "1", "thing/with, comma.py": "2"}
        site = FakeSite(tmp_path / which)
        info = site.install("thing", "1", files, compiled=which)
        rows = (info / "RECORD").read_text().splitlines()
        (info / "RECORD").write_text("\n".join(sorted(rows, reverse=which == "b")))
        digests.add(digest_of_record(str(info / "RECORD")))
    assert len(digests) == 1


@pytest.mark.parametrize("path", ["thing/__init__.py", "thing/native.so", "thing/table.json"])
def test_another_file_is_another_digest(site: FakeSite, path: str) -> None:
    """Under the same version: code, native code, and data that code may read."""
    files = {"thing/__init__.py": "", "thing/native.so": "", "thing/table.json": ""}
    before = digest_of_record(str(site.install("thing", "1", files) / "RECORD"))
    after = digest_of_record(str(site.install("thing", "1", {**files, path: "!"}) / "RECORD"))
    assert len(before) == 16
    assert before != after


def test_files_without_record_are_known_by_size_and_time(tmp_path: Path) -> None:
    """The time in whole seconds; what is compiled from them does not count."""
    package = tmp_path / "thing"
    (package / "sub").mkdir(parents=True)
    file = package / "sub" / "code.py"
    file.write_text("1")
    os.utime(file, ns=(0, 5_000_000_001))
    first = digest_of_files(str(package))
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "code.pyc").write_text("")
    (package / "README").write_text("")
    os.utime(file, ns=(0, 5_000_000_002))
    assert digest_of_files(str(package)) == first
    os.utime(file, ns=(0, 6_000_000_000))
    second = digest_of_files(str(package))
    file.write_text("12")
    os.utime(file, ns=(0, 6_000_000_000))
    assert len({first, second, digest_of_files(str(package)), digest_of_files(str(file))}) == 4
