"""Words of a command line. What they do as options is in test_arguments.py."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.network.addresses import Address
from jaxd_server.config.argument_types import (
    SAME_USER,
    parse_address,
    parse_count,
    parse_folder,
    parse_gpus,
    parse_name,
    parse_seconds,
    parse_share,
    parse_size,
    parse_user,
    parse_users,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_address, "tls://0.0.0.0:1", Address.tls("0.0.0.0", 1)),
        (parse_name, "gpu.example.org:443", "gpu.example.org:443"),
        (parse_folder, "none", "none"),
        (parse_user, "1000", 1000),
        (parse_user, "root", 0),
        (parse_users, "61000-61009", (61000, 61009)),
        (parse_users, "7-8", (7, 8)),
        (parse_users, "none", SAME_USER),
        (parse_size, "8GiB", 8 << 30),
        (parse_gpus, "0, 2", "0,2"),
        (parse_gpus, "GPU-8f6a-11,MIG-77", "GPU-8f6a-11,MIG-77"),
        (parse_count, "7", 7),
        (parse_share, "1", 1.0),
        (parse_seconds, "0", 0.0),
    ],
)
def test_a_word_becomes_a_value(parse: Callable[[str], Any], text: str, value: Any) -> None:
    """Of the type that the options have."""
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_address, "http://x"),
        (parse_address, "ssh://gpu-host"),
        (parse_name, "a b:c"),
        (parse_size, "0"),
        (parse_user, "nobody-of-that-name"),
        (parse_users, "61009-61000"),
        (parse_users, "61000-61000"),
        (parse_users, "0-9"),
        (parse_users, "61000"),
        (parse_users, "1-4294967295"),
        (parse_gpus, ""),
        (parse_gpus, "0,0"),
        (parse_count, "²"),
        (parse_share, "0"),
        (parse_seconds, "inf"),
    ],
)
def test_a_word_that_means_nothing_is_refused(parse: Callable[[str], Any], text: str) -> None:
    """By an error that names the word and that argparse understands."""
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(repr(text))):
        parse(text)


def test_a_relative_folder_is_one_of_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may run in another one."""
    monkeypatch.chdir(tmp_path)
    assert parse_folder("mine") == str(tmp_path / "mine")
