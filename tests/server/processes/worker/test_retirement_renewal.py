from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.errors import WorkerReplaced
from jaxd_server.execution.admission import Admission
from jaxd_server.processes.worker.retirement import PackageMonitor
from jaxd_server.runtime.imported_packages import ImportedPackages
from tests.fake_packages import FakeSite


def test_a_change_closes_the_doors_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host once, and every call that comes across it."""
    site = FakeSite(tmp_path)
    monkeypatch.syspath_prepend(site.path)
    site.install("renewed", "1", {"renewed.py": "1"})
    importlib.import_module("renewed")
    admission = Admission()
    begun: list[list[str]] = []
    events: list[tuple[str, dict[str, Any]]] = []
    package_monitor = PackageMonitor(ImportedPackages(), admission, begun.append)
    package_monitor.record_imports()
    package_monitor.poll(lambda *event: events.append(event))
    assert (admission.draining, begun, events) == (False, [], [])
    site.install("renewed", "2", {"renewed.py": "22"})
    for _ in range(2):
        package_monitor.poll(lambda *event: events.append(event))
        with pytest.raises(WorkerReplaced):
            admission.acquire("f", None)
    assert begun == [["renewed was changed from 1 to 2"]]
    assert len(events) == 2
    kind, content = events[0]
    assert (kind, content["package"], content["function"]) == ("warning", "renewed", "")
    assert content["text"] == (
        "renewed was changed from 1 to 2 where the server runs: the server's worker was restarted."
    )


def test_what_a_call_imports_is_watched_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the end of that call."""
    site = FakeSite(tmp_path)
    monkeypatch.syspath_prepend(site.path)
    begun: list[list[str]] = []
    package_monitor = PackageMonitor(ImportedPackages(), Admission(), begun.append)
    site.install("renewed_later", "1", {"renewed_later.py": "1"})
    importlib.import_module("renewed_later")
    package_monitor.record_imports()
    site.install("renewed_later", "2", {"renewed_later.py": "22"})
    package_monitor.poll(lambda *_: None)
    assert begun == [["renewed_later was changed from 1 to 2"]]


def test_a_worker_that_holds_arrays_of_clients_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose call noticed the change is told why, and it happens when they are gone."""
    site = FakeSite(tmp_path)
    monkeypatch.syspath_prepend(site.path)
    site.install("renewed_never", "1", {"renewed_never.py": "1"})
    importlib.import_module("renewed_never")
    begun: list[list[str]] = []
    texts: list[str] = []
    values = [object()]
    admission = Admission()
    package_monitor = PackageMonitor(
        ImportedPackages(), admission, begun.append, lambda: bool(values)
    )
    package_monitor.record_imports()
    site.install("renewed_never", "2", {"renewed_never.py": "22"})
    package_monitor.poll(lambda _, content: texts.append(content["text"]))
    assert (begun, admission.draining) == ([], False)
    (text,) = texts
    assert text == (
        "renewed_never was changed from 1 to 2 where the server runs: the server's worker goes on "
        "with what was there before, because it holds arrays of clients. It is restarted when "
        "there are none (`jaxd values` lists them), or by `jaxd stop`."
    )
    values.clear()
    package_monitor.poll(lambda _, content: texts.append(content["text"]))
    assert begun == [["renewed_never was changed from 1 to 2"]]
    values.append(object())  # too late: it has begun
    package_monitor.poll(lambda _, content: texts.append(content["text"]))
    assert texts[1].endswith("the server's worker was restarted.")
    assert texts[2] == texts[1]
