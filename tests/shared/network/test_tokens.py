from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.tokens import (
    checked_token,
    config_dir,
    default_token_file,
    read_token_file,
    without_password,
    write_token_file,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a token may go; the directory does not exist yet."""
    return tmp_path / "new" / "token"


def test_settings_live_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """`$XDG_CONFIG_HOME`, else below the home directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    assert default_token_file() == "/x/jaxd/token"
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", "/home/ann")
    assert config_dir() == "/home/ann/.config/jaxd"


def test_what_is_written_is_read(path: Path) -> None:
    """32 random bytes, url-safe, in a file and a directory of the user alone."""
    token = write_token_file(str(path))
    assert read_token_file(str(path)) == token
    assert len(token) == 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["token"]


def test_a_token_is_never_lost_by_accident(path: Path) -> None:
    """An existing one is replaced only on request."""
    first = write_token_file(str(path))
    with pytest.raises(ConfigurationError, match=r"exists already.*--force"):
        write_token_file(str(path))
    assert read_token_file(str(path)) == first
    assert write_token_file(str(path), replace=True) != first


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """With the option that chooses another place."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot write .*--file"):
        write_token_file(str(tmp_path / "file" / "token"))


def test_a_missing_file_says_how_to_make_it(path: Path) -> None:
    """The whole command."""
    with pytest.raises(ConfigurationError, match=f"jaxd token --file {path}"):
        read_token_file(str(path))


def owned_by(owner: int, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that is looked at has this owner and mode."""
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        seen = real(descriptor)
        return os.stat_result((stat.S_IFREG | mode, *seen[1:4], owner, *seen[5:]))

    monkeypatch.setattr(os, "fstat", fstat)


@pytest.mark.parametrize(
    ("owner", "mode"), [(7, 0o640), (7, 0o604), (0, 0o604), (0, 0o644), (0, 0o660)]
)
def test_a_file_that_others_can_read_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int
) -> None:
    """With the command that mends it."""
    write_token_file(str(path))
    owned_by(owner, mode, monkeypatch)
    with pytest.raises(ConfigurationError, match=f"chmod 600 {path}"):
        read_token_file(str(path))


def test_root_may_hand_a_secret_to_a_group(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is how a pod with `fsGroup`, or a unit with `LoadCredential`, gets it."""
    token = write_token_file(str(path))
    owned_by(0, 0o440, monkeypatch)
    assert read_token_file(str(path)) == token


@pytest.mark.parametrize("content", [b"", b" \n", b"a\nb", b"\x00", b"x" * 5000])
def test_what_is_no_token_is_refused(path: Path, content: bytes) -> None:
    """Empty, several lines, not text, or far too long."""
    write_token_file(str(path))
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="one line with a token"):
        read_token_file(str(path))


@pytest.mark.parametrize(
    ("token", "is_enough"),
    [
        ("0123456789abcdef" * 2, True),
        ("0123456789abcdef0123456789abcde", False),
        ("0123456789" * 4, True),
        ("0123456789" * 3 + "01234567", False),
        ("kT9_x-Wq2Lr7Vb4Zs8Nm1P", True),
        ("kT9_x-Wq2Lr7Vb4Zs8Nm1", False),
        ("abababab" * 10, False),
        ("f" * 64, False),
        ("hunter2", False),
    ],
)
def test_a_token_has_128_bits_at_best_or_is_refused(token: str, is_enough: bool) -> None:
    """By its length, the kind of its characters, and how many of them differ."""
    if is_enough:
        assert checked_token(token, "it") == token
        return
    with pytest.raises(ConfigurationError, match=r"^it can be guessed.*`jaxd token`") as caught:
        checked_token(token, "it")
    assert token not in str(caught.value)


def test_a_file_with_a_token_that_can_be_guessed_is_refused(path: Path) -> None:
    """As one that others can read is."""
    path.parent.mkdir()
    path.touch(mode=0o600)
    path.write_text("hunter2")
    with pytest.raises(ConfigurationError, match="can be guessed"):
        read_token_file(str(path))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ftp://me:secret@host/a", "ftp://me:…@host/a"),
        ("ftp://me:s@cret@host/a:b@c", "ftp://me:…@host/a:b@c"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("ftp://me@host/a", "ftp://me@host/a"),
        ("/shared/a:b@c", "/shared/a:b@c"),
    ],
)
def test_a_password_in_a_url_is_shown_to_nobody(url: str, shown: str) -> None:
    """All else is, as it was given."""
    assert without_password(url) == shown
