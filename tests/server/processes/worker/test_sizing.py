from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxd_protocol.pickling.unpack.unpickler import UnpicklingGate
from jaxd_server.compilation.functions.table import permit_all
from jaxd_server.config.options import ServerOptions
from jaxd_server.jax_compat import compilation_cache
from jaxd_server.jax_compat.devices import all_devices_bytes, device_bytes_limit
from jaxd_server.processes.worker import sizing
from jaxd_server.runtime.imported_packages import ImportedPackages

DEFAULTS = ServerOptions(listen=())


def test_what_nobody_has_chosen_is_a_part_of_what_there_is() -> None:
    """What somebody has is taken as it is."""
    assert sizing.value_bytes(DEFAULTS) == all_devices_bytes() // 2
    assert sizing.content_bytes(DEFAULTS) == all_devices_bytes() // 8
    assert sizing.limits(DEFAULTS).device_bytes == device_bytes_limit() // 10
    chosen = replace(DEFAULTS, value_bytes=1, content_bytes=2, device_program_bytes=3)
    assert sizing.value_bytes(chosen) == 1
    assert sizing.content_bytes(chosen) == 2
    assert sizing.limits(chosen).device_bytes == 3


def test_only_a_server_that_nobody_asked_for_gives_an_accelerator_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By itself; a CPU is not worth it."""
    auto = replace(DEFAULTS, auto=True)
    assert sizing.rest_after_s(auto) == 0
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert sizing.rest_after_s(auto) > 0
    assert sizing.rest_after_s(DEFAULTS) == 0
    assert sizing.rest_after_s(replace(auto, rest_after_s=7.0)) == 7


def test_there_is_a_second_process_only_beside_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device has one owner, and exported programs come traced."""
    beside = replace(DEFAULTS, build_in="builder")
    assert sizing.build_in(beside) == "builder"
    assert sizing.build_in(replace(beside, accept="exported")) == "worker"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert sizing.build_in(beside) == "worker"


def test_without_a_folder_there_is_no_program_cache() -> None:
    """Nothing is kept."""
    assert sizing.program_cache(replace(DEFAULTS, cache_dir="none"), ImportedPackages()) is None


def test_a_server_of_programs_runs_none_that_another_has_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes code looks at none, and one with other native code not as this one does."""
    monkeypatch.setattr(compilation_cache, "install", lambda *_: None)  # of this process
    here = replace(DEFAULTS, cache_dir=str(tmp_path))
    strict = replace(here, accept="exported")
    others = (here, strict, replace(strict, allow_targets=("theirs",)))
    shelves = [sizing.program_cache(options, ImportedPackages()) for options in others]
    folders = {program_cache.store.folder for program_cache in shelves if program_cache is not None}
    assert len(folders) == 3


def test_what_is_not_looked_at_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the log of a server that was told to call native code of others."""
    pytest.importorskip("flatbuffers")
    said: list[Any] = []
    monkeypatch.setattr(sizing, "log_event", lambda event, **fields: said.append((event, fields)))
    monkeypatch.setattr(sizing, "unpickling_gate", UnpicklingGate())
    sizing.receiving(replace(DEFAULTS, accept="exported", allow_targets=("theirs",)))
    assert said == [("native_code_unchecked", {"target": "theirs"})]
    assert sizing.permitting(DEFAULTS) is permit_all
