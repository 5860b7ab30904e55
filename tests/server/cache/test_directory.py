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
    """An option before JAXD_CACHE_DIR before an absolute XDG_CACHE_HOME before ~/.cache."""
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("JAXD_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == "/home/ann/.cache/jaxd"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/ann")
    assert cache_root() == "/var/ann/jaxd"
    monkeypatch.setenv("JAXD_CACHE_DIR", "~/programs")
    assert cache_root() == "/home/ann/programs"
    assert cache_root("/elsewhere") == "/elsewhere"
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("JAXD_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_root() == "/home/ann/.cache/jaxd"
    assert cache_root("none") is None
    monkeypatch.setenv("JAXD_CACHE_DIR", "none")
    assert cache_root() is None
    assert cache_root("/elsewhere") == "/elsewhere"


@pytest.mark.parametrize("umask", [0, 0o777])
def test_a_folder_that_is_made_is_for_us_alone(root: Path, umask: int) -> None:
    """Whatever the umask, and all folders below."""
    before = os.umask(umask)
    try:
        Directory(make_trusted(str(root)), "0" * 16).make("calls")
    finally:
        os.umask(before)
    assert {mode(path) for path in [root, *root.rglob("*")] if path.is_dir()} == {0o700}
    assert (root / "v2" / "0000000000000000" / "calls").is_dir()
    tag = root / "CACHEDIR.TAG"
    assert tag.read_text().startswith("Signature: 8a477f597d28d172789f068")
    assert mode(tag) == 0o644


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


def test_a_link_is_refused(root: Path, tmp_path: Path, runtime: Path) -> None:
    """Who owns it can turn it elsewhere; one above is followed once, and its real path is used."""
    tmp_path.chmod(0o700)
    root.symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="is not a folder"):
        make_trusted(str(root))
    (runtime / "large").mkdir(mode=0o700)
    (runtime / ".cache").symlink_to("large")
    assert make_trusted(f"{runtime}/.cache/jaxd") == f"{runtime}/large/jaxd"


def test_a_file_is_no_folder(root: Path) -> None:
    """Nobody's file is removed to make room; the message names the folder and what to do."""
    root.write_text("mine")
    with pytest.raises(ConfigurationError, match="is not a folder"):
        make_trusted(str(root))
    assert root.read_text() == "mine"
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


def test_names_of_any_length_have_a_file() -> None:
    """jax's own keys hold a function's name; an empty one is not the folder itself."""
    directory = Directory("/r", "0" * 16)
    assert directory.file("calls", b"\x01\xff").endswith("/calls/01ff")
    names = {directory.file("xla", b"jit_" + b"f" * n) for n in (100, 101, 300)}
    assert len(names) == 3
    assert max(len(os.path.basename(name)) for name in names) < 255
    assert os.path.basename(Directory("/r", "0" * 16).file("calls", b"")).startswith("long-")
