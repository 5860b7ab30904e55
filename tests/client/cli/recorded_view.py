"""A view of a busy server as it could be, and a watch that shows it and notes what it is asked."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Literal

from jaxd.api.watcher import FunctionDetail, ProgramDetail
from jaxd_protocol.errors import NotPermitted
from jaxd_protocol.messages.server_view import (
    BuilderRow,
    BuildRow,
    CallRow,
    DeviceRow,
    EventRow,
    FunctionRow,
    ProgramRow,
    ServerRow,
    ServerView,
    SessionRow,
    ValueRow,
    WorkerRow,
)

NOW = 1_800_000_000.0
GB = 10**9
STEP, LOSS = "5d" * 16, "a1" * 16
"""Keys of two functions."""
MIA = "account:mia"


def latency(**counts: int) -> tuple[int, ...]:
    """A histogram by the number of each class, as `c7=3`."""
    return tuple(counts.get(f"c{place}", 0) for place in range(25))


def busy_view() -> ServerView:
    """One that has something in each table."""
    socket = "unix:///run/user/1000/jaxd/3f0c8e21b7aa/server.sock"
    small = "w: float32[512,64], x: float32[32,512]"
    large = "w: float32[512,64], x: float32[64,512]"
    step_latency = latency(c8=60_000, c9=29_000, c12=1_000)
    reason = "this server was started after it was compiled"
    program = (STEP, "train_step")
    return ServerView(
        at=NOW,
        sequence=7,
        server=ServerRow(socket, "0.1.0", 4242, NOW - 3 * 3600, (socket,), platform="gpu"),
        counters={"calls": 128_934, "saved_s": 4980.0},
        workers={"3": WorkerRow(3, 4250, "ready", "", NOW - 1, 0, 3 * GB)},
        builders={"4311": BuilderRow(4311, "train_step", NOW - 12)},
        sessions={
            "9f3c12ab": SessionRow(
                "uid:1000", "4400 on lab-7", NOW - 900, *(2, 90_000, 3, 9, 4, 4000)
            ),
            "77aa01be": SessionRow(
                "account:mia", "881 on lab-2", NOW - 60, *(1, 38_934, 1, 2, 0, 980)
            ),
        },
        calls={
            "c-000123": CallRow("train_step", "uid:1000", "building", NOW - 14, NOW - 12),
            "c-000124": CallRow(
                "evaluate", MIA, "waiting", NOW - 6, NOW - 6, "train_step", NOW - 12
            ),
            "c-000125": CallRow("simulate", MIA, "running", NOW - 34, NOW - 34),
        },
        builds={
            "41": BuildRow(
                *("loss", LOSS, "uid:1000", "load", NOW - 700, NOW - 700, NOW - 699.5),
                *("", reason, "x: float32[32,512]"),
            ),
            "42": BuildRow(
                *("train_step", STEP, "uid:1000", "building", NOW - 14, NOW - 12, 0.0),
                *("loss", "global LR: 0.1 → 0.2", small, 4311),
            ),
        },
        functions={
            STEP: FunctionRow(
                *("train_step", "train.py:41", 2, 90_000, 3, 1, 3600.0, 92.0, 310.0),
                *(step_latency, NOW - 1),
            ),
            LOSS: FunctionRow(
                *("loss", "train.py:12", 1, 38_934, 1, 2, 1380.0, 8.5, 60.0),
                *(latency(c6=38_934), NOW - 9),
            ),
        },
        programs={
            "p1": ProgramRow(
                *(*program, small, "memory", 40_000_000, 2_000_000, 9_000_000),
                *(30.0, 0.0, 60_000, 2400.0, NOW - 1),
            ),
            "p2": ProgramRow(
                *(*program, large, "memory", 41_000_000, 2_500_000, 9_000_000),
                *(31.0, 0.0, 30_000, 1200.0, NOW - 70),
            ),
        },
        values={
            "session:9f3c12ab": ValueRow(
                *("uid:1000", "9f3c12ab", "session", 12, 3 * GB),
                *(("float32[8192,8192]",), (268_435_456,)),
            ),
            "name:weights": ValueRow(
                "uid:1000", "weights", "name", 4, GB, ("float32[4096,4096]",), (67_108_864,)
            ),
        },
        devices={
            "0": DeviceRow("cuda:0", 52 * GB, 60 * GB, 80 * GB),
            "1": DeviceRow("cuda:1", 8 * GB, 9 * GB, 80 * GB),
        },
        events={
            "90": EventRow(
                *(NOW - 700, "built", "info", "loss", "", "uid:1000", "verdict=load seconds=0.5")
            ),
            "91": EventRow(
                *(NOW - 20, "call_failed", "warning", "predict", "c-000120", MIA),
                "error=ValueError",
            ),
        },
    )


def many_functions(count: int) -> ServerView:
    """One that knows so many."""
    rows = {
        f"{number:032x}": FunctionRow(f"function_{number}", "many.py:1", 1, number)
        for number in range(count)
    }
    return replace(busy_view(), functions=rows)


class RecordedWatch:
    """Shows what it is given; nothing comes by itself.

    Attributes:
        view: what is shown.
        problem: why there is nothing newer.
        asked: what it was asked, each with its arguments.
    """

    def __init__(self, view: ServerView) -> None:
        self.view = view
        self.problem = ""
        self.asked: list[tuple[Any, ...]] = []
        self._closed = threading.Event()

    def next(self, timeout_s: float | None = None) -> ServerView | None:
        """None, once it is closed."""
        self._closed.wait()
        return None

    def close(self) -> None:
        """Ends it."""
        self._closed.set()

    def detail(self, function: str) -> FunctionDetail:
        """Of any function the same."""
        self.asked.append(("detail", function))
        made = {
            "time": NOW - 700,
            "verdict": "compile",
            "seconds": 30.0,
            "reason": "global LR changed",
            "differences": [{"text": "global LR: 0.1 → 0.2 (train.py:9)"}],
        }
        program = ProgramDetail("p1", "x: float32[32,512]", {"temporaries": 4096.0}, {"flops": 2e9})
        advice = ("pass LR as an argument",)
        return FunctionDetail(function, "train_step", "train.py:41", (made,), advice, (program,))

    def text(self, function: str, program: str, stage: Literal["jaxpr", "hlo"]) -> str:
        """The HLO is somebody else's."""
        self.asked.append(("text", function, program, stage))
        if stage == "hlo":
            raise NotPermitted("the text of this program is its owner's. Ask as that principal.")
        return (
            f"{{ lambda ; a:f32[512,64]. let\n    b:f32[] = dot_general a {program}\n  in (b,) }}"
        )

    def cancel(self, call: str) -> bool:
        """It could be."""
        self.asked.append(("cancel", call))
        return True

    def clear(self, function: str) -> int:
        """There were two."""
        self.asked.append(("clear", function))
        return 2

    def forget(self, name: str) -> bool:
        """It was there."""
        self.asked.append(("forget", name))
        return True

    def release(self, what: str) -> int:
        """There were two."""
        self.asked.append(("release", what))
        return 2
