"""How long what is on disk is as good as new."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from jaxd_protocol.messages.recorded_reads import ProcessRead
from jaxd_protocol.packages.distributions import changed_since_first_seen, package_of
from jaxd_server.cache.directory import Directory
from jaxd_server.cache.shared_store import SharedStore
from jaxd_server.cache.store import open_store
from jaxd_server.cache.store_files import FolderFiles
from jaxd_server.cache.writer import Troubles
from jaxd_server.compilation.disk_cache.programs import Environments, ProgramCache
from jaxd_server.runtime.imported_packages import ImportedPackages
from tests.fake_packages import FakeSite
from tests.server.compilation.disk_cache.test_programs import Open, X, function_in, kept_one, step
from tests.server.in_process import Machine, Source


def shelved(x: Any) -> Any:
    """Names a package that imports another."""
    import shelf_upper  # type: ignore[import-not-found]

    return x * (1 + bool(shelf_upper))


def test_a_call_lasts_as_long_as_the_packages_that_it_has_run(
    open_harness: Open, site: FakeSite
) -> None:
    """Others may come, change and go, whether they are loaded or not."""
    site.install("shelf_used", "1", {"shelf_used.py": "1"})
    site.install("shelf_upper", "1", {"shelf_upper.py": "import shelf_used"})
    site.install("shelf_loaded", "1", {"shelf_loaded.py": "1"})
    importlib.import_module("shelf_loaded")
    # of a module that only its client has: this one is loaded here, and has imported the rest
    source = Source(FunctionType(shelved.__code__, {"__name__": "shelved_program"}))
    harness = open_harness()
    harness.value(source, X)
    name, kept = kept_one(harness)
    program_cache = harness.program_cache
    assert program_cache is not None
    site.install("shelf_other", "1", {"shelf_other.py": "1"})
    site.install("shelf_loaded", "2", {"shelf_loaded.py": "22"})
    changed_since_first_seen()
    assert program_cache._environments.is_current(kept.environment)
    assert list(program_cache.recent_programs()) == [kept.program]
    site.install("shelf_used", "2", {"shelf_used.py": "22"})
    changed_since_first_seen()
    assert not program_cache._environments.is_current(kept.environment)
    assert list(program_cache.recent_programs()) == []
    assert program_cache.find(function_in(harness, source), name) is None
    assert not program_cache.has(name)
    assert name in program_cache.calls()
    (change,) = program_cache.changes_since(name)
    assert change.text == "shelf_used was changed from 1 to 2"
    assert program_cache.changes_since(b"n" * 16) == ()


def test_calls_of_one_environment_share_its_record(open_harness: Open) -> None:
    """It is written once."""
    harness = open_harness()
    for size in (1, 2, 3):
        harness.value(Source(step), X[:size])
    program_cache = harness.program_cache
    assert program_cache is not None
    program_cache.flush()
    assert len({kept.environment for kept in program_cache.calls().values()}) == 1
    assert len(program_cache.store.names("environments")) == 1


def test_without_the_record_of_its_environment_a_call_is_not_trusted(open_harness: Open) -> None:
    """Nobody knows whether it is still right."""
    harness = open_harness()
    harness.value(Source(step), X)
    name, kept = kept_one(harness)
    harness = open_harness()
    program_cache = harness.program_cache
    assert program_cache is not None
    program_cache.store.remove("environments", kept.environment)
    assert not program_cache.has(name)


@pytest.mark.parametrize("content", [3, (("root",),), (("root", 1, 2, 3, 4, 5, 6, 7),)])
def test_a_record_that_is_none_is_told_of(tmp_path: Path, content: Any) -> None:
    """And stands for nothing."""
    store = open_store(*Machine(), str(tmp_path / "cache"))
    assert store is not None
    told: list[tuple[str, bytes]] = []
    environments = Environments(
        store, ImportedPackages(), lambda kind, name: told.append((kind, name))
    )
    store.write("environments", b"e" * 16, content)
    assert not environments.is_current(b"e" * 16)
    assert told == [("environments", b"e" * 16)]
    assert environments.is_current(environments.keep(()))
    store.close()


# another server's, in a store that both share -----------------------------------------------------

OLD, NEW = b"o" * 16, b"n" * 16


@pytest.fixture
def open_member(tmp_path: Path) -> Iterator[Callable[[str], ProgramCache]]:
    """Opens the cache of one more machine that shares a store."""
    opened: list[ProgramCache] = []
    shared = tmp_path / "shared"
    shared.mkdir()

    def of(target: str, facts: Mapping[str, str]) -> SharedStore:
        files = FolderFiles(Directory(str(shared), target), facts)
        return SharedStore(files, "key", Troubles())

    def open_(name: str) -> ProgramCache:
        store = open_store(*Machine(), str(tmp_path / name), shared=of)
        assert store is not None
        opened.append(ProgramCache(store, ImportedPackages()))
        return opened[-1]

    yield open_
    for cache in opened:
        cache.close()


def test_what_another_server_has_built_with_the_packages_of_now_is_found(
    open_harness: Open, open_member: Callable[[str], ProgramCache]
) -> None:
    """In place of what was kept here with those of before."""
    harness = open_harness()
    harness.value(Source(step), X)
    name, kept = kept_one(harness)
    mine, others = open_member("mine"), open_member("others")
    mine.store.write("environments", OLD, (("not_installed", "not_installed", "1", b"digest"),))
    mine.store.write("calls", name, replace(kept, environment=OLD).to_content())
    mine.flush()
    assert not mine.has(name)
    others.store.write("environments", NEW, ())
    others.store.write("programs", kept.program, (), b"program")
    others.store.write("calls", name, replace(kept, environment=NEW).to_content())
    others.flush()
    assert mine.has(name)
    assert mine.calls()[name].environment == NEW


def test_servers_learn_from_each_other_what_a_function_reads(
    open_member: Callable[[str], ProgramCache],
) -> None:
    """Neither forgets what the other has found."""
    mine, others = open_member("mine"), open_member("others")
    one, two = ProcessRead("variable", "ONE"), ProcessRead("variable", "TWO")
    for cache, read in ((mine, one), (others, two)):
        cache.keep_reads(OLD, (read,))
        cache.flush()
    assert mine.reads(OLD) == others.reads(OLD) == open_member("third").reads(OLD) == (one, two)


def test_an_obstacle_lasts_as_long_as_the_packages_that_it_may_depend_on(
    open_harness: Open, site: FakeSite
) -> None:
    """With other ones it is tried again."""
    site.install("shelf_lone", "1", {"shelf_lone.py": "1"})
    package, harness, source = package_of("shelf_lone"), open_harness(), Source(step)
    harness.value(source, X)
    _, kept = kept_one(harness)
    program_cache, function = harness.program_cache, function_in(harness, source)
    assert program_cache is not None
    assert package is not None
    program_cache.keep_obstacle(function, NEW, kept.recorded, (("shelf_lone", package),))
    assert program_cache.obstacle(NEW) == "only where it is called"
    assert not program_cache.has(NEW)
    site.install("shelf_lone", "2", {"shelf_lone.py": "22"})
    changed_since_first_seen()
    assert program_cache.obstacle(NEW) is None
