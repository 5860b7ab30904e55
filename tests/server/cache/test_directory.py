from __future__ import annotations

import os
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.local_server import cache_root
from jaxd_server.cache.directory import Directory, check_trusted, make_trusted


def mode(path: Path) -> int:
    """Who may do what."""
    return path.stat().st_mode & 0o7777


def test_the_folder_that_is_named_wins(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option before JAXD_CACHE_DIR before XDG_CACHE_HOME before ~/.cache."""
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("JAXD_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == "/home/ann/.cache/jaxd"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/ann")
    assert cache_root() == "/var/ann/jaxd"
    monkeypatch.setenv("JAXD_CACHE_DIR", "~/programs")
    assert cache_root() == "/home/ann/programs"
    assert cache_root("/elsewhere") == "/elsewhere"


def test_a_relative_xdg_cache_home_is_ignored(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its specification wants it."""
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("JAXD_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_root() == "/home/ann/.cache/jaxd"


def test_none_switches_the_cache_off(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the option and in the environment; the option wins."""
    assert cache_root("none") is None
    monkeypatch.setenv("JAXD_CACHE_DIR", "none")
    assert cache_root() is None
    assert cache_root("/elsewhere") == "/elsewhere"


@pytest.mark.parametrize("umask", [0, 0o777])
def test_only_we_can_enter_a_folder_that_is_made(root: Path, umask: int) -> None:
    """Whatever the umask, and so for all folders below it."""
    before = os.umask(umask)
    try:
        Directory(make_trusted(str(root)), "0" * 16).make("calls")
    finally:
        os.umask(before)
    assert {mode(path) for path in [root, *root.rglob("*")] if path.is_dir()} == {0o700}
    assert (root / "v2" / "0000000000000000" / "calls").is_dir()


def test_a_folder_that_others_can_read_will_do(root: Path) -> None:
    """Only what they could put there would run."""
    root.mkdir(mode=0o755)
    assert make_trusted(str(root)) == str(root)


@pytest.mark.parametrize("bits", [0o720, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_refused(root: Path, bits: int) -> None:
    """With the command that helps."""
    root.mkdir()
    root.chmod(bits)
    with pytest.raises(ConfigurationError, match=r"others can write .* run: chmod go-w"):
        make_trusted(str(root))


@pytest.mark.parametrize("below", ["v2", "v2/" + "0" * 16, "v2/" + "0" * 16 + "/calls"])
def test_so_is_any_folder_in_it(root: Path, below: str) -> None:
    """One open folder would do for a stranger."""
    directory = Directory(make_trusted(str(root)), "0" * 16)
    directory.make("calls")
    (root / below).chmod(0o777)
    with pytest.raises(ConfigurationError, match="others can write"):
        directory.make("calls")


def test_a_link_is_refused(root: Path, tmp_path: Path) -> None:
    """Who owns a link can turn it elsewhere."""
    tmp_path.chmod(0o700)
    root.symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="is not a folder"):
        make_trusted(str(root))


def test_a_link_above_is_followed_once(runtime: Path) -> None:
    """`~/.cache` may be a link to a larger disk; from then on its real path is used."""
    (runtime / "large").mkdir(mode=0o700)
    (runtime / ".cache").symlink_to("large")
    assert make_trusted(f"{runtime}/.cache/jaxd") == f"{runtime}/large/jaxd"


def test_a_file_is_refused(root: Path) -> None:
    """Nobody's file is removed to make room for a folder."""
    root.write_text("mine")
    with pytest.raises(ConfigurationError, match="is not a folder"):
        make_trusted(str(root))
    assert root.read_text() == "mine"


def test_a_folder_below_a_file_cannot_be_made(root: Path) -> None:
    """The message names the folder and what to do."""
    root.write_text("mine")
    with pytest.raises(ConfigurationError, match=r"cannot make .*/cache/jaxd.*JAXD_CACHE_DIR"):
        make_trusted(f"{root}/jaxd")


def test_a_path_that_everybody_can_change_is_refused(runtime: Path) -> None:
    """Who can rename the folder above can put another one there; a sticky one is safe."""
    above = runtime / "open"
    above.mkdir()
    above.chmod(0o777)
    (above / "cache").mkdir(mode=0o700)
    with pytest.raises(ConfigurationError, match=f"everybody can write to {above}"):
        check_trusted(str(above / "cache"))
    above.chmod(0o1777)
    check_trusted(str(above / "cache"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_refused(root: Path) -> None:
    """Also when it is above ours."""
    (root / "jaxd").mkdir(parents=True, mode=0o700)
    root.chmod(0o755)
    os.chown(root, 65534, -1)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        make_trusted(str(root))
    with pytest.raises(ConfigurationError, match=f"{root}, above .* belongs to another user"):
        make_trusted(f"{root}/jaxd")


def test_backup_programs_are_told_to_leave_it_out(root: Path) -> None:
    """By the tag that they know."""
    before = os.umask(0o077)
    try:
        Directory(make_trusted(str(root)), "0" * 16).make()
    finally:
        os.umask(before)
    tag = root / "CACHEDIR.TAG"
    assert tag.read_text().startswith("Signature: 8a477f597d28d172789f068")
    assert tag.stat().st_mode & 0o777 == 0o644


def test_long_names_fit_into_a_file_name() -> None:
    """jax's own keys hold a function's name."""
    directory = Directory("/r", "0" * 16)
    assert directory.file("calls", b"\x01\xff").endswith("/calls/01ff")
    names = {directory.file("xla", b"jit_" + b"f" * n) for n in (100, 101, 300)}
    assert len(names) == 3
    assert max(len(os.path.basename(name)) for name in names) < 255


def test_an_empty_name_has_a_file_too() -> None:
    """It is not the folder itself."""
    assert os.path.basename(Directory("/r", "0" * 16).file("calls", b"")).startswith("long-")
