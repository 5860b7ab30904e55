"""Views of servers that there are not: with a row of every kind, and with many functions."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from jaxd_protocol.messages.server_view import (
    BuilderRow,
    BuildRow,
    CallRow,
    DeviceRow,
    EventRow,
    FunctionRow,
    ProgramRow,
    QueueRow,
    ServerRow,
    ServerView,
    SessionRow,
    ValueRow,
    WorkerRow,
)

KEY = "3f2a" * 8
OTHER_KEY = "77c0" * 8
HOSTILE = '<img src=x onerror="document.title=1">&lt;b&gt;'
MB = 1_000_000


def example_view() -> ServerView:
    """Some of everything."""
    now = time.time()
    latency = [0] * 25
    latency[4], latency[5], latency[9], latency[24] = 900, 80, 15, 5
    me = "uid:1000"
    return ServerView(
        at=now,
        sequence=41,
        server=ServerRow("unix:///run/s.sock", "0.1", 100, now - 4000, ("unix:///run/s.sock",)),
        counters={
            "calls": 1250,
            "failed_calls": 3,
            "cancelled_calls": 0,
            "late_calls": 1,
            "executable_hits": 1000,
            "executable_loads": 7,
            "compiles": 12,
            "programs": 9,
            "values": 5,
            "connections": 2,
            "bytes_received": 12_345_678,
            "bytes_sent": 456,
            "disk_bytes": 98 * MB,
            "saved_s": 4321.75,
            "trace_s": 12.345,
            "compile_s": 78.9,
            "load_s": 0.45,
        },
        workers={"1": WorkerRow(1, 4711, "ready", resident_bytes=812 * MB, answered=now)},
        builders={"4800": BuilderRow(4800, "evaluate", now - 3)},
        sessions={"ab12": SessionRow(me, "train.py 99", now - 600, 1, 1250, 12, 7, 3, 60.5)},
        calls={
            "c0ffee": CallRow("evaluate", me, "building", now - 3, now - 3),
            "c0ffef": CallRow("predict", me, "waiting", now - 2, now - 2, "evaluate", now - 3),
        },
        builds={
            "1": BuildRow(
                *("train_step", KEY, me, "compile", now - 90, now - 90, now - 81.5),
                reason="train_step was never built",
                arguments="x: float32[32,512]",
                builder=4800,
            ),
            "2": BuildRow(
                *("predict", OTHER_KEY, me, "load", now - 88, now - 81.5, now - 81.25),
                *("train_step", "it was on disk", "x: float32[8]"),
            ),
            "3": BuildRow("evaluate", KEY, me, "building", now - 3, now - 3),
        },
        functions={
            KEY: FunctionRow(
                *("train_step", "train.py:12", 2, 1000, 2, 1, 4000.5, 78.9, 25.0),
                *(tuple(latency), now - 1),
            ),
            OTHER_KEY: FunctionRow(
                *("predict", "serve.py:3", 1, 0, 0, 1, 321.25, 0.0, 0.1, (0,) * 25, now)
            ),
        },
        programs={
            "aa01": ProgramRow(
                *(KEY, "train_step", "x: float32[32,512]", "memory", 3 * MB, 9 * MB, MB),
                *(8.5, 0.2, 990, 400.0, now),
            ),
            "aa02": ProgramRow(KEY, "train_step", "x: float32[64,512]", "disk", 0, 0, 2 * MB, 9.5),
        },
        values={
            "s/ab12": ValueRow(
                *(me, "ab12", "session", 12, 64 * MB, ("float32[4096,2048]",), (33_554_432,))
            ),
            "n/weights": ValueRow(me, "weights", "name", 1, 32 * MB),
        },
        devices={"0": DeviceRow("cpu:0", 96 * MB, 128 * MB, 16_000 * MB)},
        queues={"calls": QueueRow(1, 4, 2), "builds": QueueRow(1, 1, 1)},
        events={
            "7": EventRow(
                *(now - 50, "call_failed", "error", "train_step", "c0ffe0", me, "phase=running")
            ),
            "8": EventRow(now - 40, "worker_ready", "info", text="epoch=1"),
            "9": EventRow(now - 30, "client_away", "warning", text="session=ab12"),
        },
    )


def hostile_view() -> ServerView:
    """With HTML wherever somebody else chooses a text."""
    view = example_view()
    row = replace(view.functions[KEY], name=HOSTILE, where=HOSTILE)
    build = replace(view.builds["1"], function=HOSTILE, reason=HOSTILE, arguments=HOSTILE)
    value = replace(
        view.values["n/weights"], holder=HOSTILE, largest=(HOSTILE,), largest_nbytes=(MB,)
    )
    event = replace(view.events["7"], function=HOSTILE, text=HOSTILE)
    call = replace(view.calls["c0ffee"], function=HOSTILE, behind=HOSTILE)
    return replace(
        view,
        functions={**view.functions, KEY: row},
        builds={**view.builds, "1": build},
        values={**view.values, HOSTILE: value},
        events={**view.events, "7": event},
        calls={**view.calls, "c0ffee": call},
    )


def tenants_view() -> ServerView:
    """Of a server with a worker for each principal: names begin with it."""
    view = example_view()
    tables = ("functions", "builds", "programs", "calls")
    rows: dict[str, Any] = {
        table: {f"account:{who}/{key}": row for who in ("alice", "bob") for key, row in own.items()}
        for table in tables
        for own in (getattr(view, table),)
    }
    return replace(view, **rows)


def large_view(functions: int) -> ServerView:
    """With so many functions."""
    now = time.time()
    rows = {
        f"{number:032x}": FunctionRow(
            f"layer_{number:05}",
            f"model_{number % 100}.py:{number}",
            1,
            number,
            1,
            0,
            number / 8,
            0.5,
            number / 64,
            (number, *(0,) * 24),
            now - number,
        )
        for number in range(functions)
    }
    return replace(example_view(), functions=rows, programs={}, builds={})
