"""Recipes in a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jaxd.cli import lockfile
from jaxd.cli.lockfile import check_writable, read_lockfile, write_lockfile
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.messages.recipes import Recipe, RecordedCall

PICKLED = RecordedCall(b"P\0\0\0\1", (3, 800), (b"abc",))
RECIPES = [
    Recipe(
        "evaluate", b"e" * 16, b"o", (b"meaning", ("x", True)), b"code", (PICKLED,), ("x", "*rest")
    ),
    Recipe("train", b"t" * 16, b"o", (b"meaning", ()), b"code", (RecordedCall(b"N"), PICKLED)),
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A lockfile that is in order."""
    file = str(tmp_path / "warm.lock")
    write_lockfile(file, RECIPES)
    return file


def test_recipes_come_back(path: str) -> None:
    """All of them, whole."""
    assert read_lockfile(path) == RECIPES


def test_none_is_a_lockfile_too(tmp_path: Path) -> None:
    """A program that calls nothing is no reason to stop a build."""
    write_lockfile(str(tmp_path / "empty"), [])
    assert read_lockfile(str(tmp_path / "empty")) == []


def test_the_same_recipes_are_the_same_bytes(path: str, tmp_path: Path) -> None:
    """So that a repository shows when something has changed."""
    train = RECIPES[1]._replace(calls=RECIPES[1].calls[::-1])
    write_lockfile(str(tmp_path / "other"), [train, RECIPES[0]])
    assert (tmp_path / "other").read_bytes() == Path(path).read_bytes()


def test_code_of_two_options_is_there_once(tmp_path: Path) -> None:
    """Sets of options are cheap."""
    code = os.urandom(50_000)
    many = [RECIPES[0]._replace(key=bytes([n]) * 16, code=code) for n in range(5)]
    write_lockfile(str(tmp_path / "many"), many)
    assert len((tmp_path / "many").read_bytes()) < 60_000
    assert read_lockfile(str(tmp_path / "many")) == many


def test_writing_replaces_a_file_at_once(path: str) -> None:
    """Nothing else is left in the folder."""
    write_lockfile(path, RECIPES[:1])
    assert read_lockfile(path) == RECIPES[:1]
    assert os.listdir(os.path.dirname(path)) == ["warm.lock"]


def test_a_flipped_bit_anywhere_is_noticed(path: str) -> None:
    """With what to do about it."""
    whole = Path(path).read_bytes()
    for at in range(len(whole)):
        Path(path).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(ConfigurationError, match=r"jaxd warm --record .*warm\.lock"):
            read_lockfile(path)


def test_a_file_that_is_cut_off_is_noticed(path: str) -> None:
    """At any place; an empty one as well."""
    whole = Path(path).read_bytes()
    for end in range(len(whole)):
        Path(path).write_bytes(whole[:end])
        with pytest.raises(ConfigurationError, match=r"jaxd warm --record .*warm\.lock"):
            read_lockfile(path)


def test_each_kind_of_trouble_is_told_apart(path: str) -> None:
    """Damaged, of another version, something else, not there."""
    whole = Path(path).read_bytes()
    for data, words in (
        (whole[:-1], "is damaged"),
        (whole.replace(b"lockfile ", b"lockfile 1", 1), "another version of jaxd"),
        (b"# requirements\n", "is no lockfile"),
    ):
        Path(path).write_bytes(data)
        with pytest.raises(ConfigurationError, match=words):
            read_lockfile(path)
    os.unlink(path)
    with pytest.raises(ConfigurationError, match="No such file"):
        read_lockfile(path)


def test_what_fits_its_checksum_but_is_no_recipe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wrote it."""
    file = str(tmp_path / "odd")
    content = lockfile._content(RECIPES)
    python, codes, (first, *_) = content
    odd = [
        (python,),
        (python, (), (first,)),
        (python, codes, (first[:-1],)),
        (python, codes, ((*first[:-2], ((b"P\0\0\0\1", (3,), ()),), ()),)),
        3,
    ]
    for each in odd:
        monkeypatch.setattr(lockfile, "_content", lambda _, each=each: each)
        write_lockfile(file, [])
        with pytest.raises(ConfigurationError, match="is damaged"):
            read_lockfile(file)


def test_another_python_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code in it is for the one that recorded it."""
    monkeypatch.setattr(lockfile, "_python", lambda: "3.99")
    with pytest.raises(
        ConfigurationError, match=r"recorded with Python 3\.\d+, and this is .*3\.99"
    ):
        read_lockfile(path)


def test_a_place_where_nothing_can_be_written_is_told_early(tmp_path: Path) -> None:
    """Before the program is run; where it can, nothing is changed."""
    file = tmp_path / "warm.lock"
    file.write_text("old")
    check_writable(str(file))
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["warm.lock"]
    folder = tmp_path / "folder"
    folder.mkdir()
    for place in (folder, tmp_path / "no" / "folder"):
        with pytest.raises(ConfigurationError, match="cannot write"):
            check_writable(str(place))
        with pytest.raises(ConfigurationError, match="cannot write"):
            write_lockfile(str(place), [])
    assert sorted(os.listdir(tmp_path)) == ["folder", "warm.lock"]
