from __future__ import annotations

import logging
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jaxd_server.cache import shared_store
from jaxd_server.cache.record_file import Record
from jaxd_server.cache.shared_store import SharedStore, Waiting, open_shared_store
from jaxd_server.cache.store_files import UrlFiles
from jaxd_server.cache.writer import Troubles
from tests.server.cache.test_shared_store import KEY, NAME, RECORD, TARGET

fsspec: Any = pytest.importorskip("fsspec", reason="a store behind a URL needs fsspec")

Open = Callable[..., SharedStore]


@pytest.fixture
def url() -> str:
    """A store in memory, which nobody else has."""
    return f"memory://{secrets.token_hex(8)}/store"


@pytest.fixture
def open_(url: str) -> Open:
    """Opens the store as one more machine does."""

    def open_one(key: str = KEY, *, read_only: bool = False) -> SharedStore:
        files = UrlFiles(url, TARGET, {"cpu": "any"})
        return SharedStore(files, key, Troubles(), read_only=read_only)

    return open_one


def objects(url: str) -> dict[str, bytes]:
    """What lies in the store."""
    files, root = fsspec.core.url_to_fs(url)
    return {path: files.cat_file(path) for path in files.find(root)}


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The names of the events that were logged as warnings."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


# records -----------------------------------------------------------------------------------------


def test_a_record_is_found_by_another_machine(open_: Open, url: str) -> None:
    """Whole, or without its payload; what the target stands for lies beside it."""
    open_().write("programs", NAME, RECORD)
    assert open_().read("programs", NAME) == RECORD
    assert open_().read("programs", NAME, payload=False) == Record(RECORD.content, b"")
    assert any(path.endswith("target.json") for path in objects(url))
    assert not open_().lacks("programs", NAME)


def test_of_a_large_program_only_the_header_is_fetched(
    open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is only asked whether it is there."""
    large = Record(RECORD.content, secrets.token_bytes(1 << 18))
    open_().write("programs", NAME, large)
    store = open_()
    fetched: list[int] = []
    file_system: Any = store._files._fs  # type: ignore[attr-defined]
    real = file_system.cat_file

    def cat_file(*args: Any, **kwargs: Any) -> bytes:
        data: bytes = real(*args, **kwargs)
        fetched.append(len(data))
        return data

    monkeypatch.setattr(file_system, "cat_file", cat_file)
    assert store.read("programs", NAME, payload=False) == Record(RECORD.content, b"")
    assert sum(fetched) < 1 << 17
    assert store.read("programs", NAME) == large


def test_what_is_not_signed_with_the_key_is_not_there(
    open_: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """It is warned of once, and replaced by who makes it anew."""
    open_(KEY[::-1]).write("programs", NAME, RECORD)
    store = open_()
    assert store.read("programs", NAME) is None
    assert store.read("programs", NAME) is None
    assert events(caplog) == ["store_entry_refused"]
    assert store.lacks("programs", NAME)
    open_().write("programs", NAME, RECORD)
    assert store.read("programs", NAME) == RECORD


def test_a_changed_byte_is_a_miss_and_a_warning(
    open_: Open, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it is."""
    open_().write("programs", NAME, RECORD)
    files, _ = fsspec.core.url_to_fs(url)
    (path,) = [path for path in objects(url) if path.endswith(NAME.hex())]
    sound = files.cat_file(path)
    for place in (10, len(sound) // 2, len(sound) - 1):
        files.pipe_file(path, sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        caplog.clear()
        assert open_().read("programs", NAME) is None
        assert events(caplog) == ["store_entry_refused"]


def test_a_reader_writes_nothing(open_: Open, url: str) -> None:
    """Neither records nor leases."""
    reader = open_(read_only=True)
    reader.write("programs", NAME, RECORD)
    assert not reader.lacks("programs", NAME)
    with reader.lease(NAME, lambda: False, print) as lease:
        assert lease is None
    assert objects(url) == {}


# a store that is not there -----------------------------------------------------------------------


def test_a_store_that_cannot_be_reached_is_warned_of_once(
    open_: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All is a miss then, and the network is not asked for each."""
    store = open_()
    asked: list[None] = []
    file_system: Any = store._files._fs  # type: ignore[attr-defined]

    def cat_file(*_: Any, **__: Any) -> bytes:
        asked.append(None)
        raise RuntimeError("no route to host")

    monkeypatch.setattr(file_system, "cat_file", cat_file)
    for number in range(5):
        assert store.read("programs", bytes([number]) * 16) is None
        assert not store.lacks("programs", NAME)
    store.write("programs", NAME, RECORD)
    with store.lease(NAME, lambda: False, print) as lease:
        assert lease is None
    assert events(caplog) == ["store_unreadable", "store_not_written"]
    assert len(asked) == 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SharedStore | None]:
    """Opens a store by its name, as a server does."""
    monkeypatch.setenv("JAXD_STORE_KEY", KEY)
    return lambda store: open_shared_store(store, TARGET, {"cpu": "any"})


@pytest.mark.parametrize(
    ("store", "missing", "reason"),
    [
        ("memory://a/b", "fsspec.core", "pip install 'jaxd[store]'"),
        ("abfs://a/b", "adlfs", "which package has abfs://"),
        ("nowhere://user:secret@a/b", "", "user:…@a/b cannot be opened"),
    ],
)
def test_what_is_missing_for_a_url_is_said(
    opened: Callable[[str], SharedStore | None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    store: str,
    missing: str,
    reason: str,
) -> None:
    """There is no store then; a password in the URL is said to nobody."""
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    assert opened(store) is None
    (said,) = [each for each in caplog.records if each.getMessage() == "store_refused"]
    fields: dict[str, str] = said.fields  # type: ignore[attr-defined]
    assert reason in fields["reason"]
    assert "secret" not in str(fields)


def test_a_url_of_a_folder_is_the_folder(
    opened: Callable[[str], SharedStore | None], tmp_path: Path
) -> None:
    """With the same entries."""
    by_url = opened(f"file://{tmp_path}/a%20store")
    assert by_url is not None
    by_url.write("programs", NAME, RECORD)
    by_path = opened(f"{tmp_path}/a store")
    assert by_path is not None
    assert by_path.read("programs", NAME) == RECORD


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A web server that shows a folder; its URL, and what it was asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *_: Any) -> None:
            asked.append(self.command)

        def log_error(self, *_: Any) -> None:
            """What is not there is no trouble."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_web_server_is_read_and_not_written_to(
    opened: Callable[[str], SharedStore | None], tmp_path: Path, web: tuple[str, list[str]]
) -> None:
    """What main has written, pull requests load."""
    pytest.importorskip("aiohttp", reason="fsspec reads the web with aiohttp")
    address, asked = web
    writer = opened(str(tmp_path))
    assert writer is not None
    writer.write("programs", NAME, RECORD)
    reader = opened(address)
    assert reader is not None
    assert reader.read_only
    assert reader.read("programs", NAME) == RECORD
    assert reader.read("programs", b"o" * 16) is None
    reader.write("programs", b"o" * 16, RECORD)
    with reader.lease(b"o" * 16, lambda: False, print) as lease:
        assert lease is None
    assert {*asked} <= {"GET", "HEAD"}


# leases ------------------------------------------------------------------------------------------


def test_one_at_a_time_holds_a_lease(
    open_: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many want it; nothing is left of it."""
    held: list[int] = []
    holding, writing = threading.Lock(), threading.Lock()
    kind: Any = type(fsspec.core.url_to_fs(url)[0])
    real = kind.pipe_file

    def pipe_file(*args: Any, **kwargs: Any) -> None:
        with writing:  # object storage makes an object that was not there in one step
            real(*args, **kwargs)

    monkeypatch.setattr(kind, "pipe_file", pipe_file)

    def build(number: int) -> None:
        with open_().lease(NAME, lambda: False, lambda _: None) as lease:
            if lease is not None:
                assert holding.acquire(blocking=False)
                held.append(number)
                holding.release()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(build, range(8)))
    assert held
    assert objects(url) == {}


def test_two_never_take_the_same_lease(open_: Open, url: str) -> None:
    """Also where both have found none."""
    one, other = (UrlFiles(url, TARGET, {}) for _ in range(2))
    stem = f"{one.directory.folder}/leases/{NAME.hex()}."
    assert one.take(stem, 0) is not None
    assert other.take(stem, 0) is None
    assert other.take(stem, 1) is not None


def test_a_lease_that_nobody_touches_is_taken_over(
    open_: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder has ended; until that is known, who waits knows for whom."""
    monkeypatch.setattr(shared_store, "LEASE_S", 0.2)
    ended = UrlFiles(url, TARGET, {})
    assert ended.take(f"{ended.directory.folder}/leases/{NAME.hex()}.", 0) is not None
    waited: list[Waiting] = []
    with open_().lease(NAME, lambda: False, waited.append) as lease:
        assert lease is not None
    assert all(each.host for each in waited)
    assert waited
    assert objects(url) == {}


@pytest.mark.slow
def test_a_lease_that_is_touched_is_waited_for(
    open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as its holder lives; who waits may give up."""
    monkeypatch.setattr(shared_store, "LEASE_S", 0.3)
    monkeypatch.setattr(shared_store, "_BEAT_S", 0.02)
    waited: list[float] = []

    def give_up(waiting: Waiting) -> None:
        waited.append(waiting.seconds)
        if waiting.seconds > 1.0:
            raise KeyboardInterrupt

    with open_().lease(NAME, lambda: False, print) as held:
        assert held is not None
        with pytest.raises(KeyboardInterrupt), open_().lease(NAME, lambda: False, give_up):
            raise AssertionError
    with open_().lease(NAME, lambda: False, give_up) as lease:
        assert lease is not None


def test_what_others_put_in_the_place_of_a_lease_is_none(open_: Open, url: str) -> None:
    """It is not waited for."""
    files, root = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{root}/v2/{TARGET}/leases/{NAME.hex()}.0", b"for ever")
    waited: list[Waiting] = []
    with open_().lease(NAME, lambda: False, waited.append) as lease:
        assert lease is not None
    assert waited == []
