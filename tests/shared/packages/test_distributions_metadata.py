from __future__ import annotations

import os
from pathlib import Path

import pytest

from jaxd_protocol.packages.distributions import (
    describe,
    digest_of_files,
    digest_of_record,
    file_stamp,
    owners,
)
from tests.fake_packages import FakeSite


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    """An empty folder of installed packages."""
    return FakeSite(tmp_path)


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


def test_several_may_put_files_into_one_folder(site: FakeSite) -> None:
    """A namespace package belongs to all of them."""
    site.install("google-a", "1", {"google/a/__init__.py": ""})
    site.install("google-b", "1", {"google/b/__init__.py": ""})
    site.install("zebra", "1", {"google/z.py": ""})
    assert sorted(names(site, "google/")) == ["google-a", "google-b", "zebra"]
    assert names(site, "google/z.py") == ["zebra"]


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


def test_a_folder_that_is_not_there_has_no_owners(tmp_path: Path) -> None:
    """Nor is that an error."""
    assert owners(str(tmp_path / "site-packages"), "thing.py") == []


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


def test_a_file_that_is_not_there_has_a_stamp(tmp_path: Path) -> None:
    """So that its coming and going is noticed."""
    path = tmp_path / "file"
    gone = file_stamp(str(path))
    path.touch()
    assert file_stamp(str(path)) != gone
    path.unlink()
    assert file_stamp(str(path)) == gone
