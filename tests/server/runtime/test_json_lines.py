from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jaxd_server.runtime.json_lines import encode_line, messages


def read(data: bytes, limit: int = 1 << 16) -> list[dict[str, Any]]:
    """What `messages` makes of `data`."""

    async def collect() -> list[dict[str, Any]]:
        reader = asyncio.StreamReader(limit=limit)
        reader.feed_data(data)
        reader.feed_eof()
        return [message async for message in messages(reader)]

    return asyncio.run(collect())


def test_messages_come_back_one_a_line() -> None:
    """Line ends inside of strings do not tear a message."""
    sent: list[dict[str, Any]] = [{"ask": "status"}, {"text": "two\nlines", "n": [1]}]
    assert read(b"".join(encode_line(message) for message in sent)) == sent


def test_others_have_their_turn_between_messages_that_have_all_arrived() -> None:
    """Whoever sends without pause holds up nobody's task."""
    turns = 0

    async def count() -> int:
        nonlocal turns

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        reader = asyncio.StreamReader()
        reader.feed_data(b"{}\n" * 100)
        reader.feed_eof()
        task = asyncio.create_task(other())
        async for _ in messages(reader):
            pass
        task.cancel()
        return turns

    assert asyncio.run(count()) >= 99


def test_what_is_nested_without_end_is_an_error() -> None:
    """Of the line, as any other."""
    with pytest.raises(ValueError, match="nested"):
        read(b'{"a":' + b"[" * 200_000 + b"\n", limit=1 << 20)


@pytest.mark.parametrize("data", [b"hello\n", b"[1]\n", b"\xff\n", b'{"a": ' + b"1" * 100 + b"}\n"])
def test_anything_else_is_an_error(data: bytes) -> None:
    """No JSON, no object, no text, too long: the reader is told, and does not guess."""
    with pytest.raises(ValueError, match=r".+"):
        read(data, limit=64)
