"""A store that machines share: a folder, and what fsspec opens behind a URL."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.tokens import read_store_key
from jaxd_protocol.pytree import dump_literal
from jaxd_server.cache import shared_store, store_files
from jaxd_server.cache.directory import Directory, Kind
from jaxd_server.cache.record_file import FORMAT, Header, Record
from jaxd_server.cache.shared_store import SharedStore, Waiting, open_shared_store, signing
from jaxd_server.cache.store_files import FolderFiles, UrlFiles
from jaxd_server.cache.writer import Troubles

KEY = "a-key-of-tests-0123456789-abcdefghij"
TARGET = "0123456789abcdef"
NAME = b"n" * 16
RECORD = Record((("name", "f"),), b"program")

Open = Callable[..., SharedStore]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the store."""
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def open_(folder: Path) -> Open:
    """Opens the store as one more machine does."""

    def open_one(key: str = KEY, *, read_only: bool = False, target: str = TARGET) -> SharedStore:
        files = FolderFiles(Directory(str(folder), target), {"cpu": "any"})
        return SharedStore(files, key, Troubles(), read_only=read_only)

    return open_one


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    """A store in memory, which nobody else has."""
    fsspec = pytest.importorskip("fsspec", reason="a store behind a URL needs fsspec")
    url = f"memory://{secrets.token_hex(8)}/store"
    writing = threading.Lock()
    kind: Any = type(fsspec.core.url_to_fs(url)[0])
    real = kind.pipe_file

    def pipe_file(*args: Any, **kwargs: Any) -> None:
        with writing:  # object storage makes an object that was not there in one step
            real(*args, **kwargs)

    monkeypatch.setattr(kind, "pipe_file", pipe_file)
    return url


@pytest.fixture
def open_url(url: str) -> Open:
    """The same for what is behind the URL."""

    def open_one(key: str = KEY, *, read_only: bool = False, target: str = TARGET) -> SharedStore:
        files = UrlFiles(url, target, {"cpu": "any"})
        return SharedStore(files, key, Troubles(), read_only=read_only)

    return open_one


def objects(url: str) -> dict[str, bytes]:
    """What lies behind a URL."""
    import fsspec

    files, root = fsspec.core.url_to_fs(url)
    return {path: files.cat_file(path) for path in files.find(root)}


class Place(NamedTuple):
    """A store: how a machine opens it, and the names of the files in it."""

    open: Open
    files: Callable[[], list[str]]


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each kind of store."""
    if request.param == "url":
        url: str = request.getfixturevalue("url")
        return Place(request.getfixturevalue("open_url"), lambda: list(objects(url)))
    folder: Path = request.getfixturevalue("folder")
    return Place(
        request.getfixturevalue("open_"),
        lambda: [str(path) for path in folder.rglob("*")],
    )


def file_of(folder: Path, kind: str = "programs") -> Path:
    """Where the record is."""
    return folder / "v2" / TARGET / kind / NAME.hex()


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The names of the events that were logged as warnings."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


# records -----------------------------------------------------------------------------------------


def test_a_record_is_found_by_another_machine(place: Place) -> None:
    """Whole, or without its payload; what the target stands for lies beside it."""
    place.open().write("programs", NAME, RECORD)
    assert place.open().read("programs", NAME) == RECORD
    assert place.open().read("programs", NAME, payload=False) == Record(RECORD.content, b"")
    assert place.open(target=TARGET[::-1]).read("programs", NAME) is None
    assert any(path.endswith("target.json") for path in place.files())
    assert not place.open().lacks("programs", NAME)


def test_what_is_not_signed_with_the_key_is_not_there(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """It is warned of once, and replaced by who makes it anew, whichever server that is."""
    for maker in ("the same", "another"):
        place.open(KEY[::-1]).write("programs", NAME, RECORD)
        caplog.clear()
        store = place.open()
        assert store.read("programs", NAME) is None
        assert store.read("programs", NAME) is None
        assert store.lacks("programs", NAME)
        assert warned(caplog) == ["store_entry_refused"]
        (store if maker == "the same" else place.open()).write("programs", NAME, RECORD)
        assert store.read("programs", NAME) == place.open().read("programs", NAME) == RECORD
        assert not (maker == "the same" and store.lacks("programs", NAME))


def test_only_a_record_in_its_own_place_is_one(open_: Open, folder: Path) -> None:
    """Not one that was removed, under another name, a link, or a pipe, for which nobody waits."""
    store = open_()
    store.write("programs", NAME, RECORD)
    file_of(folder).unlink()
    assert store.lacks("programs", NAME)
    open_().write("programs", NAME, RECORD)
    path, other = file_of(folder), b"o" * 16
    os.link(path, path.with_name(other.hex()))
    assert open_().read("programs", other) is None
    moved = path.rename(folder / "moved")
    path.symlink_to(moved)
    assert open_().read("programs", NAME) is None
    path.unlink()
    os.mkfifo(path)
    assert open_().read("programs", NAME) is None


@pytest.mark.parametrize(
    "field",
    [{"signature": 7}, {"signature": "\u20ac"}, {"stored": "7"}, {"kind": b"calls"}],
    ids=str,
)
def test_what_was_made_up_is_not_there(open_: Open, folder: Path, field: dict[str, Any]) -> None:
    """Whatever its header holds, before anybody could look at the signature."""
    path = file_of(folder)
    path.parent.mkdir(parents=True)
    header = Header("programs", NAME, TARGET, (), "none", 0, 0, b"", b"")._replace(**field)
    data = dump_literal(tuple(header))
    prefix = struct.pack("!8sIQ", b"\x89jaxd\r\n\x1a", FORMAT, len(data))
    path.write_bytes(prefix + hashlib.blake2b(prefix + data, digest_size=16).digest() + data)
    assert open_().read("programs", NAME) is None


@pytest.mark.parametrize("kind", ["code", "functions", "xla"])
def test_code_of_functions_is_not_shared(open_: Open, folder: Path, kind: Kind) -> None:
    """It is neither written nor read."""
    open_().write(kind, NAME, RECORD)
    assert list(folder.iterdir()) == []
    assert not open_().lacks(kind, NAME)


def test_a_folder_that_is_a_link_is_not_written_to(
    open_: Open, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others may be able to put one there."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "programs").mkdir(parents=True)
    (folder / "v2").mkdir()
    (folder / "v2" / TARGET).symlink_to(elsewhere)
    open_().write("programs", NAME, RECORD)
    assert warned(caplog) == ["store_not_written"]
    assert list((elsewhere / "programs").iterdir()) == []


@pytest.mark.parametrize(("mode", "of_files"), [(0o700, 0o600), (0o2775, 0o664)])
def test_it_is_open_to_whom_its_folder_is(
    open_: Open, folder: Path, mode: int, of_files: int
) -> None:
    """Whatever the umask is."""
    folder.chmod(mode)
    open_().write("programs", NAME, RECORD)
    path = file_of(folder)
    assert path.stat().st_mode & 0o7777 == of_files
    assert path.parent.stat().st_mode & 0o7777 == mode


def test_a_reader_writes_nothing(place: Place) -> None:
    """Neither records nor leases."""
    reader = place.open(read_only=True)
    reader.write("programs", NAME, RECORD)
    assert not reader.lacks("programs", NAME)
    with reader.lease(NAME, lambda: False, print) as lease:
        assert lease is None
    assert place.files() == []


# behind a URL ------------------------------------------------------------------------------------


def test_of_a_large_program_only_the_header_is_fetched(
    open_url: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is only asked whether it is there."""
    large = Record(RECORD.content, secrets.token_bytes(1 << 18))
    open_url().write("programs", NAME, large)
    store = open_url()
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


def test_a_changed_byte_is_a_miss_and_a_warning(
    open_url: Open, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it is."""
    import fsspec

    open_url().write("programs", NAME, RECORD)
    files, _ = fsspec.core.url_to_fs(url)
    (path,) = [path for path in objects(url) if path.endswith(NAME.hex())]
    sound = files.cat_file(path)
    for at in (10, len(sound) // 2, len(sound) - 1):
        files.pipe_file(path, sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        caplog.clear()
        assert open_url().read("programs", NAME) is None
        assert warned(caplog) == ["store_entry_refused"]


def test_a_store_that_cannot_be_reached_is_warned_of_once(
    open_url: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All is a miss then, and the network is not asked for each."""
    store = open_url()
    asked: list[None] = []

    def cat_file(*_: Any, **__: Any) -> bytes:
        asked.append(None)
        raise RuntimeError("no route to host")

    monkeypatch.setattr(store._files._fs, "cat_file", cat_file)  # type: ignore[attr-defined]
    for number in range(5):
        assert store.read("programs", bytes([number]) * 16) is None
        assert not store.lacks("programs", NAME)
    store.write("programs", NAME, RECORD)
    with store.lease(NAME, lambda: False, print) as lease:
        assert lease is None
    assert warned(caplog) == ["store_unreadable", "store_not_written"]
    assert len(asked) == 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SharedStore | None]:
    """Opens a store by its name, as a server does."""
    pytest.importorskip("fsspec", reason="a store behind a URL needs fsspec")
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
    """What main has written, pull requests load; the URL of a folder is that folder."""
    pytest.importorskip("aiohttp", reason="fsspec reads the web with aiohttp")
    address, asked = web
    writer = opened(f"file://{tmp_path}/a%20store")
    assert writer is not None
    writer.write("programs", NAME, RECORD)
    by_path, reader = opened(f"{tmp_path}/a store"), opened(f"{address}/a%20store")
    assert by_path is not None
    assert by_path.read("programs", NAME) == RECORD
    assert reader is not None
    assert reader.read_only
    assert reader.read("programs", NAME) == RECORD
    assert reader.read("programs", b"o" * 16) is None
    reader.write("programs", b"o" * 16, RECORD)
    with reader.lease(b"o" * 16, lambda: False, print) as lease:
        assert lease is None
    assert {*asked} <= {"GET", "HEAD"}


@pytest.mark.parametrize("tells", [True, False], ids=["dated", "undated"])
def test_a_refused_entry_of_the_web_is_read_again_once_it_is_another(
    opened: Callable[[str], SharedStore | None],
    tmp_path: Path,
    web: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    tells: bool,
) -> None:
    """By what the server says of it; where that is nothing, after a minute."""
    pytest.importorskip("aiohttp", reason="fsspec reads the web with aiohttp")
    address, asked = web
    hours = [0.0]
    clock = SimpleNamespace(**vars(time) | {"monotonic": lambda: 3600 * hours[0]})
    monkeypatch.setattr(store_files, "time", clock)
    if not tells:
        monkeypatch.setattr(store_files, "_CHANGING", frozenset())
    writer, reader = opened(str(tmp_path)), opened(address)
    assert writer is not None
    assert reader is not None
    path = writer._directory.file("programs", NAME)
    writer._sign, sign = signing(KEY[::-1]), writer._sign
    writer.write("programs", NAME, RECORD)
    assert reader.read("programs", NAME) is None
    asked.clear()
    assert reader.read("programs", NAME) is None
    assert asked == ["HEAD"]
    writer._sign = sign
    writer.write("programs", NAME, RECORD)
    os.utime(path, (0, 0) if tells else None)
    hours[0] += not tells
    assert reader.read("programs", NAME) == RECORD


# the key -----------------------------------------------------------------------------------------


def test_processes_that_start_together_have_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them makes the file, and nobody reads half of it."""
    monkeypatch.delenv("JAXD_STORE_KEY", raising=False)
    monkeypatch.delenv("JAXD_STORE_KEY_FILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    code = "from jaxd_protocol.network.tokens import read_store_key as k; print(k())"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)
    ]
    keys = {each.communicate()[0] for each in started}
    assert keys == {(read_store_key() + "\n").encode()}
    assert [path.name for path in (tmp_path / "jaxd").iterdir()] == ["store.key"]
    monkeypatch.setenv("JAXD_STORE_KEY", KEY)
    assert read_store_key() == KEY


@pytest.mark.parametrize(
    ("variable", "value"), [("JAXD_STORE_KEY", ""), ("JAXD_STORE_KEY_FILE", "/nowhere/key")]
)
def test_a_key_that_was_to_be_given_is_not_made(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """A job that was not given the secret must not sign with another one."""
    monkeypatch.delenv("JAXD_STORE_KEY", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError):
        read_store_key()


# leases ------------------------------------------------------------------------------------------


def test_one_at_a_time_holds_a_lease(place: Place) -> None:
    """However many want it; nothing is left of it."""
    held: list[int] = []
    holding = threading.Lock()

    def build(number: int) -> None:
        with place.open().lease(NAME, lambda: False, lambda _: None) as lease:
            if lease is not None:
                assert holding.acquire(blocking=False)
                held.append(number)
                holding.release()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(build, range(8)))
    assert held
    assert [path for path in place.files() if "/leases/" in path] == []


def test_two_never_take_the_same_lease(url: str) -> None:
    """Also where both have found none."""
    one, other = (UrlFiles(url, TARGET, {}) for _ in range(2))
    stem = f"{one.directory.folder}/leases/{NAME.hex()}."
    assert one.take(stem, 0) is not None
    assert other.take(stem, 0) is None
    assert other.take(stem, 1) is not None


def test_what_is_there_needs_no_lease(open_: Open) -> None:
    """Nor is one waited for; what fails gives its lease back."""
    with open_().lease(NAME, lambda: False, print) as lease:
        assert lease is not None
        with open_().lease(NAME, lambda: True, print) as other:
            assert other is None
    with pytest.raises(ZeroDivisionError), open_().lease(NAME, lambda: False, print):
        raise ZeroDivisionError
    with open_().lease(NAME, lambda: False, print) as lease:
        assert lease is not None


def test_after_a_holder_without_success_all_build_at_the_same_time(open_: Open) -> None:
    """What it could not make, or not keep, is no better when each waits for the one before."""
    all_inside = threading.Barrier(3)
    waiting = threading.Semaphore(0)

    def build() -> bool:
        with open_().lease(NAME, lambda: False, lambda _: waiting.release()) as lease:
            all_inside.wait(30)
            return lease is None

    with ThreadPoolExecutor(3) as threads:
        with open_().lease(NAME, lambda: False, print):
            builds = [threads.submit(build) for _ in range(3)]
            for _ in range(9):  # each looks at least once
                waiting.acquire()
        assert [each.result() for each in builds] == [True] * 3


@pytest.mark.parametrize("what", ["pipe", "link", "large number", "long ago", "behind a URL"])
def test_what_others_put_in_the_place_of_a_lease(
    folder: Path, what: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It is neither waited for nor followed, and nothing else is removed; nor one of long ago."""
    leases = folder / "v2" / TARGET / "leases"
    leases.mkdir(parents=True)
    first = leases / f"{NAME.hex()}.0"
    secret = tmp_path / "secret"
    secret.write_text("secret")
    if what == "pipe":
        os.mkfifo(first)
        os.utime(first, (0, 0))
    elif what == "link":
        first.symlink_to(secret)
    elif what == "large number":
        (leases / f"{NAME.hex()}.123456789012345").write_text("")
    elif what == "long ago":
        first.write_text("gone")
        os.utime(first, (time.time() - 7200,) * 2)
    else:
        import fsspec

        files, root = fsspec.core.url_to_fs(request.getfixturevalue("url"))
        files.pipe_file(f"{root}/v2/{TARGET}/leases/{NAME.hex()}.0", b"for ever")
    open_: Open = request.getfixturevalue("open_url" if what == "behind a URL" else "open_")
    waited: list[Waiting] = []
    with open_().lease(NAME, lambda: False, waited.append) as lease:
        assert lease is not None
    assert waited == []
    assert secret.read_text() == "secret"


HOLD = """
import sys
from tests.server.cache.test_shared_store import *
store = SharedStore(FolderFiles(Directory(sys.argv[1], TARGET), {}), KEY, Troubles())
with store.lease(NAME, lambda: False, print) as lease:
    print(lease is not None, flush=True)
    sys.stdin.read()
"""


def test_the_lease_of_a_killed_process_is_taken_over(
    open_: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it was not touched for long enough; until then, who waits knows for whom."""
    monkeypatch.setattr(shared_store, "LEASE_S", 0.2)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"True\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    waited: list[Waiting] = []
    with open_().lease(NAME, lambda: False, waited.append) as lease:
        assert lease is not None
    assert {each.host for each in waited} == {os.uname().nodename}
    assert list((folder / "v2" / TARGET / "leases").iterdir()) == []


def test_a_lease_behind_a_url_that_nobody_touches_is_taken_over(
    open_url: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder has ended; until that is known, who waits knows for whom."""
    monkeypatch.setattr(shared_store, "LEASE_S", 0.2)
    ended = UrlFiles(url, TARGET, {})
    assert ended.take(f"{ended.directory.folder}/leases/{NAME.hex()}.", 0) is not None
    waited: list[Waiting] = []
    with open_url().lease(NAME, lambda: False, waited.append) as lease:
        assert lease is not None
    assert all(each.host for each in waited)
    assert waited
    assert objects(url) == {}


@pytest.mark.slow
def test_a_lease_that_is_touched_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as its holder lives; who waits may give up."""
    monkeypatch.setattr(shared_store, "LEASE_S", 0.3)
    monkeypatch.setattr(shared_store, "_BEAT_S", 0.02)

    def give_up(waiting: Waiting) -> None:
        if waiting.seconds > 1.0:
            raise KeyboardInterrupt

    with place.open().lease(NAME, lambda: False, print) as held:
        assert held is not None
        with pytest.raises(KeyboardInterrupt), place.open().lease(NAME, lambda: False, give_up):
            raise AssertionError
    with place.open().lease(NAME, lambda: False, give_up) as lease:
        assert lease is not None
