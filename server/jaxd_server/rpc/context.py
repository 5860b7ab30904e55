"""What all connections of a worker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.rpc.flow_control import Backlog, CallBudget
from jaxd_server.rpc.inflight_calls import CallPolicy
from jaxd_server.rpc.reader_handoff import StallWatchdog
from jaxd_server.rpc.services.admin import AdminService
from jaxd_server.rpc.services.stages import Stages
from jaxd_server.rpc.sessions import Session
from jaxd_server.runtime.counters import Traffic
from jaxd_server.runtime.threads.executors import FairThreadPool, ThreadPerTask
from jaxd_server.values.store import ValueStore


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What all connections of a worker share.

    Attributes:
        pipeline: answers calls.
        operations: answers who looks after the server.
        stages: shows what becomes of a function.
        runners: threads for warm calls that take a while.
        builders: threads for calls that may have to build an executable first, and operations.
        watchdog: looks after the readers.
        budget: bytes held by all connections.
        traffic: counts the bytes of all connections.
        values: arrays that stay on the server.
        slots: calls in flight on one connection.
        max_frame_bytes, max_result_bytes: limits of what is received and sent.
        max_shared_bytes: of a client's memory that is mapped.
        report: JSON-able answers to `statistics` and `info`, to a principal.
        devices: the same to `devices`, for a session.
        backlog: calls that were taken on.
        max_connections: how many clients may be connected.
        policy: what holds for calls that others than a connection's reader answer.
    """

    pipeline: Pipeline
    operations: AdminService
    stages: Stages
    runners: FairThreadPool
    builders: ThreadPerTask
    watchdog: StallWatchdog
    budget: CallBudget
    traffic: Traffic
    values: ValueStore
    slots: int
    max_frame_bytes: int
    max_result_bytes: int
    max_shared_bytes: int
    report: Callable[[str, str], dict[str, Any]]
    devices: Callable[[Session], dict[str, Any]]
    policy: CallPolicy
    backlog: Backlog
    max_connections: int
