"""What Prometheus reads of a server, and who may."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from jaxd_protocol.messages.server_view import (
    LATENCY_BOUNDS_S,
    DeviceRow,
    FunctionRow,
    ServerRow,
    WorkerRow,
    row_dict,
)
from jaxd_protocol.network.tokens import write_token_file
from jaxd_server.auth.listen_policy import check_trust
from jaxd_server.config.options import ServerOptions, parse_arguments
from jaxd_server.processes.supervision.metrics import MAX_FUNCTIONS, ViewMetrics
from jaxd_server.processes.supervision.server_view import ServerViews, WorkerRows
from tests.live_server import ROOT, LiveServer

client = pytest.importorskip("prometheus_client", reason="needs prometheus-client")


def views(**tables: dict[str, Any]) -> ServerViews:
    """A view with these rows."""
    found = ServerViews(tuple, ServerRow)
    found.journal.put("server", "", row_dict(ServerRow(version="1.2", platform="cpu", since=5.0)))
    for table, rows in tables.items():
        found.journal.replace(table, rows)
    return found


def samples(metrics: ViewMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What Prometheus' own parser reads, by name and labels."""
    from prometheus_client import generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    text = generate_latest(cast("Any", metrics)).decode()
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def labelled(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """The key of a sample."""
    return name, frozenset(labels.items())


def function(name: str, hits: int, seconds: float = 1e-4) -> dict[str, Any]:
    """A row of a function whose calls took so long each."""
    place = next(i for i, bound in enumerate(LATENCY_BOUNDS_S) if seconds <= bound)
    latency = [0] * (len(LATENCY_BOUNDS_S) + 1)
    latency[place] = hits
    return row_dict(
        FunctionRow(name, hits=hits, run_s=hits * seconds, latency=tuple(latency), saved_s=2.0)
    )


def test_counts_have_the_names_and_units_of_prometheus() -> None:
    """Counters end in `_total`, times are seconds, sizes bytes."""
    found = samples(
        ViewMetrics(
            views(
                counters={"calls": 7, "saved_s": 1.5, "bytes_sent": 9, "value_bytes": 3},
                workers={"2": row_dict(WorkerRow(2, state="ready", restarts=1))},
                devices={"0": row_dict(DeviceRow("gpu:0", 5, 6, 7))},
            )
        )
    )
    assert found[labelled("jaxd_calls_total")] == 7
    assert found[labelled("jaxd_saved_seconds_total")] == 1.5
    assert found[labelled("jaxd_sent_bytes_total")] == 9
    assert found[labelled("jaxd_value_bytes")] == 3
    assert found[labelled("jaxd_workers", state="ready")] == 1
    assert found[labelled("jaxd_workers", state="stuck")] == 0
    assert found[labelled("jaxd_worker_restarts_total")] == 1
    assert found[labelled("jaxd_device_memory_limit_bytes", device="0")] == 7
    assert found[labelled("jaxd_server_info", version="1.2", platform="cpu")] == 1
    for name, _ in found:
        assert re.fullmatch(r"jaxd_[a-z_]+", name)
        assert not re.search(r"_s(_total)?$|_ms", name)


def test_the_histogram_adds_up_all_functions() -> None:
    """Cumulated by upper bound, as Prometheus has them."""
    rows = {"00": function("f", 3, 1e-5), "01": function("g", 2, 1.0)}
    found = samples(ViewMetrics(views(functions=rows)))
    name = "jaxd_call_duration_seconds"
    buckets = {
        float(dict(labels)["le"]): value
        for (each, labels), value in found.items()
        if each == f"{name}_bucket"
    }
    assert list(buckets.values()) == sorted(buckets.values())
    assert (buckets[1e-5], buckets[float("inf")]) == (3, 5)
    assert found[labelled(f"{name}_count")] == 5
    assert found[labelled(f"{name}_sum")] == pytest.approx(2.00003)


def test_labels_are_bounded_and_no_count_falls() -> None:
    """The most used functions have names; one that has one keeps it when others pass it."""
    rows = {f"{n:02x}": function(f"f{n}", 1000 - n) for n in range(MAX_FUNCTIONS + 5)}
    seen = views(functions=rows)
    metrics = ViewMetrics(seen)
    before = samples(metrics)
    named = {dict(labels).get("function") for _, labels in before} - {None}
    assert named == {*(f"f{n}" for n in range(MAX_FUNCTIONS)), "other"}
    assert before[labelled("jaxd_function_hits_total", function="other")] == sum(
        1000 - n for n in range(MAX_FUNCTIONS, MAX_FUNCTIONS + 5)
    )
    last = MAX_FUNCTIONS + 4
    seen.journal.put("functions", f"{last:02x}", function(f"f{last}", 9999))
    after = samples(metrics)
    assert all(after[key] >= value for key, value in before.items())
    assert after.keys() == before.keys()


def test_no_count_falls_when_a_worker_ends() -> None:
    """Neither when it is one of several nor when it is the last; gauges do."""
    seen = views(workers={"a/3": row_dict(WorkerRow(3, principal="a", restarts=2))})
    metrics = ViewMetrics(seen)
    workers = [Mock(exited=asyncio.Event(), epoch=1) for _ in range(2)]
    for who, calls, worker in zip("ab", (5, 7), workers, strict=True):
        rows = WorkerRows(worker, who, seen.journal)
        counters = {"calls": calls, "sessions": 1}
        rows._take({"view": {"functions": {"00": function("f", calls)}, "counters": counters}})
        seen._rows[rows.worker] = rows
    seen.journal.replace("counters", {"calls": 12, "sessions": 2})
    before = samples(metrics)
    assert before[labelled("jaxd_calls_total")] == 12
    assert before[labelled("jaxd_function_hits_total", function="f")] == 12
    assert before[labelled("jaxd_worker_restarts_total")] == 2
    workers[0].exited.set()
    seen._forget_ended({workers[1]})
    seen.journal.replace("counters", {"calls": 7, "sessions": 1})
    one = samples(metrics)
    asyncio.run(seen.refresh())  # which finds neither of them
    for after in (one, samples(metrics)):
        fallen = {key[0] for key, value in before.items() if after.get(key, value) < value}
        assert "jaxd_sessions" in fallen
        assert not [name for name in fallen if name.endswith(("_total", "_bucket", "_sum"))]
        assert after[labelled("jaxd_calls_total")] == 12
        assert after[labelled("jaxd_function_hits_total", function="f")] == 12


def test_names_cannot_break_out_of_a_label() -> None:
    """Whatever a function is called; and who may see the metrics does not see who is there."""
    rows = {"account:alice/00": function('f"} 1\njaxd_calls_total 9', 1)}
    workers = {"account:alice/1": row_dict(WorkerRow(1, principal="account:alice"))}
    found = samples(ViewMetrics(views(functions=rows, workers=workers)))
    assert found[labelled("jaxd_calls_total")] == 0
    assert "alice" not in repr(found)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--metrics", "0.0.0.0:9464"), "token"),
        (("--metrics", "10.0.0.1:1"), "token"),
        (("--metrics", "127.0.0.1:9464"), None),
        (("--metrics", "[::1]:9464"), None),
        (("--metrics", "0.0.0.0:9464", "--metrics-token-file", "/x"), None),
    ],
)
def test_beyond_this_machine_there_has_to_be_a_token(
    words: tuple[str, ...], problem: str | None, runtime: Path
) -> None:
    """Nobody reads function names over a network without it."""
    options = parse_arguments([*words, "--listen", f"unix://{runtime}/s"])
    if problem is None:
        check_trust(options)
        return
    with pytest.raises(Exception, match=problem):
        check_trust(options)


@pytest.mark.parametrize("address", ["9464", "host", "a b:1", "tcp://x:1", "x:1?insecure=1"])
def test_what_is_no_address_is_refused(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With a usage message."""
    with pytest.raises(SystemExit):
        parse_arguments(["--metrics", address])
    assert "HOST:PORT" in capsys.readouterr().err


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    """Each panel, by names that the server serves."""
    dashboard = json.loads((ROOT / "docker" / "grafana-dashboard.json").read_text())
    rows = {"00": function("f", 1)}
    devices = {"0": row_dict(DeviceRow("cpu:0"))}
    served = {name for name, _ in samples(ViewMetrics(views(functions=rows, devices=devices)))}
    asked: set[str] = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"\bjaxd_[a-z_]+", target["expr"])
            assert names, panel["title"]
            asked.update(names)
    assert asked <= served
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_page_names_every_metric() -> None:
    """And no other."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"`(jaxd_[a-z_]+)`", page))
    rows = {"00": function("f", 1)}
    devices = {"0": row_dict(DeviceRow("cpu:0"))}
    served = {name for name, _ in samples(ViewMetrics(views(functions=rows, devices=devices)))}
    of_histograms = re.compile("_(bucket|count|sum)$")
    assert named == {of_histograms.sub("", name) for name in served}


def read(url: str, token: str = "") -> tuple[int, str]:
    """Status and text of a page."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.slow
@pytest.mark.own_server
def test_a_server_serves_what_it_did(start_live: Callable[..., LiveServer], runtime: Path) -> None:
    """To whoever has the token; with it set, to nobody else."""
    import jaxd

    file = runtime / "metrics.token"
    token = write_token_file(str(file))
    live = start_live("--metrics", "127.0.0.1:0", "--metrics-token-file", str(file))
    (line,) = [line for line in live.lines if line["event"] == "metrics_served"]
    url = f"http://{line['address']}/metrics"
    with jaxd.connect(live.unix) as one:
        double = one.persistent_call(lambda x: x * 2)
        for _ in range(3):
            double(1.0)
        status, text = read(url, token)
    assert status == 200
    assert "jaxd_calls_total 3.0" in text
    assert "jaxd_compiles_total 1.0" in text
    assert "jaxd_call_duration_seconds_count 2.0" in text
    assert read(url)[0] == read(url, "wrong")[0] == 401
    assert read(url.replace("/metrics", "/secrets"), token)[0] == 404


def test_without_the_package_the_server_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is served."""
    import sys

    from jaxd_protocol.errors import ConfigurationError
    from jaxd_server.processes.supervision.metrics import serving_metrics

    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    async def serve() -> None:
        async with serving_metrics(ServerOptions(metrics="127.0.0.1:0"), views()):
            pass

    with pytest.raises(ConfigurationError, match=r"pip install 'jaxd\[metrics\]'"):
        asyncio.run(serve())
