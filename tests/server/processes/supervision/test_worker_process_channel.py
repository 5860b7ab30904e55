from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from jaxd_server.processes.supervision.worker_process import PendingAnswer, WorkerChannel

PATIENCE_S = 30.0


class Talk(NamedTuple):
    """A line, the worker's end of it, and what came of it."""

    line: WorkerChannel
    worker: Any
    heard: list[Mapping[str, Any]]
    over: list[ValueError | None]


def play(scenario: Callable[[Talk], Awaitable[None]], limit: int = 1 << 16) -> Talk:
    """What is left of a line on which a scenario was played, and which then was let go of.

    It is over when it has heard `{"last": true}`.
    """

    async def run() -> Talk:
        ours, theirs = socket.socketpair()
        heard: list[Mapping[str, Any]] = []
        over: list[ValueError | None] = []

        def hear(message: Mapping[str, Any]) -> bool:
            heard.append(message)
            return "last" not in message

        with theirs, theirs.makefile("rwb", buffering=0) as worker:
            talk = Talk(WorkerChannel(ours, limit, hear, over.append), worker, heard, over)
            await asyncio.wait_for(scenario(talk), PATIENCE_S)
            talk.line.close()
            await talk.line.read_remaining()
            return talk

    return asyncio.run(run())


async def until_over(talk: Talk) -> None:
    """Returns when nothing more is heard."""
    while not talk.over:  # noqa: ASYNC110  it is the line that decides
        await asyncio.sleep(0)


def test_what_is_said_before_the_line_is_open_is_said_in_order() -> None:
    """Nobody has to wait for it."""

    async def scenario(talk: Talk) -> None:
        talk.line.send({"ask": 1})
        talk.line.send({"ask": 2})
        assert not talk.line.is_open
        talk.worker.write(b'{"last": true}\n')
        await until_over(talk)
        assert [json.loads(talk.worker.readline()) for _ in range(2)] == [{"ask": 1}, {"ask": 2}]

    play(scenario)


def test_nothing_more_is_heard_after_what_was_enough() -> None:
    """The worker may go on; it is told that nobody listens."""

    async def scenario(talk: Talk) -> None:
        talk.worker.write(b'{"a": 1}\n{"last": true}\n{"b": 2}\n')
        await until_over(talk)
        assert not talk.line.is_open

    talk = play(scenario)
    assert talk.heard == [{"a": 1}, {"last": True}]
    assert talk.over == [None]


def test_what_cannot_be_read_ends_the_line() -> None:
    """And it is told why: no JSON, or too long."""

    async def scenario(talk: Talk) -> None:
        talk.worker.write(b"garbage" * 100 + b"\n")
        await until_over(talk)

    assert [[type(why) for why in play(scenario, limit).over] for limit in (16, 1 << 16)] == [
        [ValueError],
        [json.JSONDecodeError],
    ]


def test_a_question_is_asked_once_until_it_is_answered() -> None:
    """However many want to know; then it is asked again."""

    async def scenario() -> None:
        question, asked = PendingAnswer(), list[int]()

        async def ask(patience_s: float) -> asyncio.Future[str]:
            return await question.ask(lambda: asked.append(1), patience_s)

        assert [(await ask(0.0)).done(), (await ask(0.0)).done()] == [False, False]
        assert question.is_open
        waiting = asyncio.create_task(ask(PATIENCE_S))
        await asyncio.sleep(0)
        question.answered("why")
        assert (await waiting).result() == "why"
        assert (len(asked), question.is_open) == (1, False)
        await ask(0.0)
        assert len(asked) == 2

    asyncio.run(scenario())


def test_nobody_waits_for_what_will_not_be_answered() -> None:
    """Neither those who do already nor those who come."""

    async def scenario() -> None:
        question = PendingAnswer()
        waiting = asyncio.create_task(question.ask(lambda: None, PATIENCE_S))
        await asyncio.sleep(0)
        question.drop()
        assert (await waiting).cancelled()
        assert (await question.ask(lambda: None, PATIENCE_S)).cancelled()
        question.answered("too late")
        question.drop()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
