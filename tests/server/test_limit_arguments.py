from __future__ import annotations

from pathlib import Path

import pytest

from jaxd_server.arguments import parse_arguments
from jaxd_server.options import ServerOptions


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("512M", 512 << 20), ("8GiB", 8 << 30), ("1KB", 1024), ("2T", 2 << 40)],
)
def test_sizes_may_have_a_unit(runtime: Path, text: str, size: int) -> None:
    """Units are powers of 1024, however they are written."""
    assert parse_arguments(["--max-frame-bytes", text]).max_frame_bytes == size


def test_the_room_on_disk_is_a_size(runtime: Path) -> None:
    """`--disk-bytes` takes what the other sizes take."""
    assert parse_arguments(["--disk-bytes", "3G"]).disk_bytes == 3 << 30


def test_how_many_programs_stay_in_memory_can_be_said(runtime: Path) -> None:
    """As a number, in bytes here and on the device, and as shares of what the system allows."""
    words = "--max-executables 7 --program-bytes 2G --device-program-bytes 1M --map-share 0.25"
    options = parse_arguments([*words.split(), "--principal-share", "1"])
    assert options == ServerOptions(
        listen=options.listen,
        max_executables=7,
        program_bytes=2 << 30,
        device_program_bytes=1 << 20,
        map_share=0.25,
        principal_share=1.0,
    )


def test_devices_and_their_memory_can_be_said(runtime: Path) -> None:
    """By default that is left to jax and its variables."""
    words = "--devices 0,GPU-8f6a --device-memory-fraction 0.4 --no-preallocate"
    options = parse_arguments(words.split())
    assert options.devices == "0,GPU-8f6a"
    assert options.device_memory_fraction == 0.4
    assert options.preallocate is False
    assert parse_arguments(["--preallocate"]).preallocate is True
    assert parse_arguments([]).preallocate is None
