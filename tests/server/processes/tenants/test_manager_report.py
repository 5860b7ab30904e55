from __future__ import annotations

from jaxd_server.processes.supervision.tenant_settings import Tenant, User
from jaxd_server.processes.tenants.manager import tenants_report

GATEWAY = {"worker": {"running_calls": 0}, "worker_state": "ready", "worker_silent_s": 0.1}
ALICE = Tenant("account:alice", "/kept", User(61000, 61000, (), "61000", "/kept"))
BOB = Tenant("account:bob", "none")


def told(**seen: object) -> dict[str, object]:
    """What is known of a worker that has said this."""
    return {"worker_state": "ready", "worker_pid": 7, "worker": seen}


def running(function: str, **more: object) -> dict[str, object]:
    """A call that runs."""
    return {"function": function, "seconds": 1.5, **more}


def test_the_report_has_the_sums_and_a_row_for_each() -> None:
    """And the state of the gateway, through which all come."""
    alices = told(calls=3, epoch=5, running=[running("f")])
    bobs = told(calls=4, epoch=1, running=[running("g")])
    report = tenants_report(GATEWAY, [ALICE, BOB], [alices, bobs])
    assert report["worker_state"] == "ready"
    assert report["worker"] == {
        "calls": 7,
        "running": [
            running("f", principal="account:alice"),
            running("g", principal="account:bob"),
        ],
    }
    assert [row["user"] for row in report["workers"]] == ["61000", None]
    assert [row["worker"]["calls"] for row in report["workers"]] == [3, 4]
    assert report["workers"][0]["worker"]["epoch"] == 5


def test_nobody_is_there() -> None:
    """Right after the start."""
    assert tenants_report(GATEWAY, [], []) == {**GATEWAY, "worker": {}, "workers": []}


def test_a_worker_that_says_nonsense_spoils_nobody_elses_report() -> None:
    """Code of its client may have made it say that, under the name of another as well."""
    lies = [7, {}, {"function": "f", "seconds": "long"}, running("f", principal="account:bob")]
    liar = told(calls="many", traces=[1], running=lies, left_behind=7, principals=["x"])
    honest = told(calls=4, traces=1, running=[running("g")], left_behind=[], principals=[])
    report = tenants_report(GATEWAY, [ALICE, BOB], [liar, honest])
    assert report["worker"] == {
        "calls": 4,
        "traces": 1,
        "running": [
            running("f", principal="account:alice"),
            running("g", principal="account:bob"),
        ],
        "left_behind": [],
        "principals": [],
    }
