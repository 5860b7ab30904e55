from __future__ import annotations

import fcntl
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd.request.arguments import encode_arguments
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_server.cache.__main__ import main
from jaxd_server.cache.store import Store
from tests.server.cache.keeping import file_of, keep_call, open_here, unused_for, usage_of

Run = Callable[..., tuple[int, str, str]]
Report = Callable[..., Any]
PROGRAM = b"\x77" * 16


@pytest.fixture
def root(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of the environment; not made yet."""
    monkeypatch.setenv("JAXD_CACHE_DIR", str(runtime / "cache"))
    monkeypatch.setenv("JAXD_STORE_KEY", "a-key-of-tests-0123456789-abcdefghij")
    return runtime / "cache"


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """A store with two calls that have one program, the second used an hour ago."""
    store = open_here(root)
    skeleton = bytes(
        encode_arguments((np.zeros((3, 4), np.float32),), {}, StaticArgs(), {}).skeleton
    )
    keep_call(store, b"\xaa\xbb\xcc", program=PROGRAM, skeleton=skeleton)
    keep_call(store, b"\xdd\xee\xff", program=PROGRAM, name="step2", principal="")
    unused_for(3 * 3600, file_of(root, "calls", b"\xdd\xee\xff"))
    yield store
    assert store.close()


@pytest.fixture
def run(root: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command: its exit code, what it prints, and what it complains of."""
    return lambda *words: (main(list(words)), *capsys.readouterr())


@pytest.fixture
def report(run: Run) -> Report:
    """Runs the command with `--json`: what it prints."""
    return lambda *words: json.loads(run(*words, "--json")[1])


def test_ls_shows_what_is_kept(store: Store, root: Path, run: Run, report: Report) -> None:
    """A line each, the one used last first, and how much it is in all; as JSON with every field."""
    code, said, _ = run("ls")
    head, first, second, total = said.splitlines()
    assert code == 0
    assert head.split() == ["key", "function", "arguments", "build", "size", "last", "use"]
    assert first.startswith("aabbcc  step      x: float32[3,4]  1.25 s")
    assert second.startswith("ddeeff  step2")
    assert second.endswith("3 h ago")
    assert total == f"2 kept, 20.5 kB in {root}"
    found = report("ls")
    assert (found["folder"], found["bytes"]) == (str(root), usage_of(store).bytes)
    assert found["files"] == {"calls": 2, "programs": 1}
    call = found["calls"][0]
    assert (call["name"], call["arguments"]) == ("step", {"x": "float32[3,4]"})
    assert (call["build_s"], call["shared_with"]) == (1.25, ["ddeeff"])


def test_another_folder_can_be_named(
    store: Store, root: Path, report: Report, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the server's option of the same name; where the cache is switched off it says so."""
    monkeypatch.setenv("JAXD_CACHE_DIR", "none")
    code, _, said = run("ls")
    assert (code, said.startswith("jaxd: the cache is switched off")) == (1, True)
    assert len(report("ls", "--cache-dir", str(root))["calls"]) == 2


def test_ls_of_nothing(root: Path, run: Run) -> None:
    """No error, and no folder is made."""
    assert run("ls") == (0, f"0 kept, 0 B in {root}\n", "")
    assert not root.exists()


def test_show_finds_one_by_its_first_digits_or_its_name(store: Store, run: Run) -> None:
    """As `ls` shows them; with what is in the way of its program."""
    for key in ("aabbcc", "AABB", "step", "aabbc"):
        code, said, _ = run("show", key)
        assert (code, said.count("function ")) == (0, 1)
        for line in (
            "function     step",
            "arguments    x: float32[3,4]",
            "record       aabbcc",
            f"program      {'77' * 16}",
            "shared with  step2 (ddeeff)",
            "by           ann",
            "good for     0123456789abcdef",
            "             jax 1.2.3",
        ):
            assert line in said.splitlines()
        assert "tracing 0.25 s, compiling 1.00 s" in said
    keep_call(store, b"\x12\x34", name="noisy", obstacle="callbacks")
    assert "not kept     its program: callbacks" in run("show", "noisy")[1]


def test_show_finds_all_of_a_key_and_of_a_program(store: Store, run: Run, report: Report) -> None:
    """Or nothing, with where to look; three digits are too few to mean anything."""
    for key in ("11111111", "7777"):
        found = report("show", key)["calls"]
        assert [call["record"] for call in found] == ["aabbcc", "ddeeff"]
        assert found[0]["facts"] == {"jax": "1.2.3"}
    for key in ("aab", "ffff", "nothing", ""):
        complaint = f"jaxd: nothing kept is called {key}. See: jaxd cache ls\n"
        assert run("show", key) == (1, "", complaint)


def test_what_is_packed_is_unpacked_elsewhere(
    store: Store, root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the code of functions, and what is broken or signed with another key."""
    store.write("code", b"\x11", (), b"code")
    store.flush(10)
    archive, other, third = (str(root.parent / name) for name in ("jaxd.tar", "other", "third"))
    assert run("pack", archive)[1].startswith("packed 3 files, ")
    assert run("unpack", archive, "--cache-dir", other)[1].startswith("unpacked 3 files, ")
    assert run("verify", "--cache-dir", other)[0] == 0
    assert "step2" in run("ls", "--cache-dir", other)[1]
    program = file_of(root, "programs", PROGRAM)
    program.write_bytes(program.read_bytes()[:-1])
    code, said, _ = run("pack", archive)
    assert (code, "1 are broken and were left out" in said) == (0, True)
    monkeypatch.setenv("JAXD_STORE_KEY", "another-key-of-tests-0123456789-abcdefghij")
    code, said, _ = run("unpack", archive, "--cache-dir", third, "--json")
    assert (code, json.loads(said)["refused"]) == (1, 2)
    assert run("ls", "--cache-dir", third)[1].startswith("0 kept")


def test_what_is_no_archive_is_not_unpacked(root: Path, run: Run) -> None:
    """Nor is a file that is not there."""
    (root.parent / "text").write_text("text")
    for name, words in (("text", "is no archive of `jaxd cache pack`"), ("none", "No such file")):
        code, _, said = run("unpack", str(root.parent / name))
        assert (code, words in said) == (1, True)


def test_gc_removes_down_to_a_size(store: Store, root: Path, run: Run, report: Report) -> None:
    """What was used last stays."""
    said = f"removed 1 files, 4.1 kB; 16.4 kB left in {root}\n"
    assert run("gc", "--max-bytes", "16K") == (0, said, "")
    assert store.names("calls") == [b"\xaa\xbb\xcc"]
    assert report("gc") == {"files": 0, "bytes": 0, "left": 16384}


def test_verify_removes_what_is_broken_and_exits_with_1(store: Store, root: Path, run: Run) -> None:
    """Each with its reason; before that nothing is wrong, and the second time all is well."""
    assert run("verify") == (0, "3 files checked, 0 broken\n", "")
    program = file_of(root, "programs", PROGRAM)
    data = program.read_bytes()
    program.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    folder = file_of(root, "calls", b"\x55")
    folder.mkdir()
    code, said, _ = run("verify", "--json")
    found = json.loads(said)
    assert (code, found["checked"]) == (1, 4)
    assert {each["path"]: each["reason"] for each in found["broken"]} == {
        str(program): "its payload was changed",
        str(folder): "it cannot be opened: Is a directory",
    }
    assert not program.exists()
    assert not folder.exists()
    assert run("verify")[0] == 0


class Terminal(io.StringIO):
    """Stands for a terminal at which somebody types."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_clear_removes_all(store: Store, root: Path, run: Run, report: Report) -> None:
    """Without asking where nobody can answer; a dry run says the same, and removes nothing."""
    code, said, _ = run("clear", "--dry-run")
    assert code == 0
    assert said.startswith(f"would remove 3 files, 20.5 kB, from {root}\n")
    assert len(report("ls")["calls"]) == 2
    assert run("clear") == (0, "removed 3 files, 20.5 kB\n", "")
    assert os.listdir(root / "v2") == []


@pytest.mark.parametrize(
    ("typed", "words", "left"), [("n\n", [], 1), ("\n", [], 1), ("y\n", [], 0), ("", ["--yes"], 0)]
)
def test_clear_asks_on_a_terminal(
    store: Store, root: Path, monkeypatch: Any, typed: str, words: list[str], left: int
) -> None:
    """Anything but yes leaves all as it is, with exit code 1; `--yes` is not asked."""
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert main(["clear", *words]) == left
    assert len(os.listdir(root / "v2")) == left


OLD = "v1/0123456789abcdef"


def test_purge_removes_all_that_jaxd_keeps(
    store: Store, root: Path, run: Run, report: Report
) -> None:
    """And the folder; first, `--dry-run` says how large each part is, and removes nothing."""
    named = ("eager/jit_f-0a-cache", "quarantine/0123456789abcdef.json", "use/use.json")
    for file in (*named, f"{OLD}/target.json"):
        (root / file).parent.mkdir(parents=True)
        (root / file).write_bytes(b"x" * 5000)
    code, said, _ = run("purge", "--dry-run")
    rows = [line.split() for line in said.splitlines()]
    assert (code, rows[0][:2]) == (0, ["would", "remove"])
    parts = ["CACHEDIR.TAG", "eager", "quarantine", "use", "v1", "v2"]
    assert [row[0] for row in rows[1:]] == parts
    assert rows[2] == ["eager", "1", "files", "8.19", "kB"]
    files = [path for path in root.rglob("*") if path.is_file()]
    code, said, _ = run("purge")
    assert (code, said.startswith(f"removed {len(files)} files, ")) == (0, True)
    assert not root.exists()
    assert report("purge") == {"folder": str(root), "bytes": 0, "files": 0}


def test_purge_leaves_what_is_not_jaxds(store: Store, root: Path, tmp_path: Path) -> None:
    """Where the cache folder is one that its user has other things in, also behind a link."""
    linked = tmp_path / "linked"
    mine = [
        *(linked / "data-cache", root / "v7" / "draft.txt", root / "notes", root / "v1" / ".git"),
        *(root / "quarantine" / "mine.csv", root / OLD / "data.bin", root / "v4"),
    ]
    for file in mine:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (root / "eager").symlink_to(linked)
    (root / "results").mkdir()
    assert main(["purge", "--yes"]) == 0
    assert all(file.exists() for file in mine)
    kept = ["eager", "notes", "quarantine", "results", "v1", "v4", "v7"]
    assert sorted(os.listdir(root)) == kept


def test_purge_asks_on_a_terminal(
    store: Store, root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anything but yes, and the end of the input, leave all as it is."""
    for typed, expected in (("n\n", 1), ("", 130)):
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        code, said, _ = run("purge")
        assert (code, f"from {root}? [y/N]" in said) == (expected, True)
        assert root.exists()
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert run("purge")[0] == 0
    assert not root.exists()
    assert run("purge") == (0, "removed 0 files, 0 B\n", "")  # nobody is asked where nothing is


def test_purge_names_the_servers_that_run(store: Store, runtime: Path, run: Run) -> None:
    """They write there again; those of other environments too."""
    folder = runtime / "jaxd" / "0123456789ab"
    folder.mkdir(parents=True)
    address = f"unix://{folder}/server.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/server.sock")
        listener.listen()
        code, _, said = run("purge")
        assert (code, f"Stop it first: jaxd stop --server {address}\n" in said) == (0, True)
    assert (*run("purge")[::2],) == (0, "")


def test_purge_leaves_the_table_of_users_to_its_server(store: Store, root: Path, run: Run) -> None:
    """Of a server with a worker for each principal, which holds a lock of the folder."""
    descriptor = os.open(root, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    code, _, said = run("purge", "--yes")
    assert (code, "Stop it first: jaxd stop" in said) == (1, True)
    assert (root / "v2").exists()
    os.close(descriptor)
    assert run("purge", "--yes")[0] == 0


def test_what_cannot_be_removed_is_said(
    store: Store, root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not freed."""
    monkeypatch.setattr("jaxd_server.cache.sweep.shutil.rmtree", lambda *_, **__: None)
    code, said, complaint = run("purge")
    assert (code, said) == (1, "removed 1 files, 4.1 kB\n")
    assert f"are left in {root}" in complaint


@pytest.mark.parametrize("command", ["ls", "gc", "verify", "clear"])
def test_a_folder_that_others_can_write_is_left_alone(
    store: Store, root: Path, run: Run, command: str
) -> None:
    """As the server does it, with what to do."""
    root.chmod(0o777)
    code, _, said = run(command)
    assert (code, f"run: chmod go-w {root}" in said) == (1, True)
    assert len(store.names("calls")) == 2
    root.chmod(0o700)


@pytest.mark.parametrize(
    "words", [["dance"], ["show"], ["gc", "--max-bytes", "0"], ["gc", "--max-bytes", "much"]]
)
def test_a_usage_error_is_one_line_and_exits_with_2(
    root: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """It says where to read on."""
    with pytest.raises(SystemExit, match="2"):
        main(words)
    said = capsys.readouterr().err
    assert said.startswith("jaxd: ")
    assert said.endswith("--help\n")


def test_without_words_it_prints_its_help(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `jaxd` does; all of it in 80 columns."""
    monkeypatch.setattr(sys, "argv", ["jaxd cache"])
    with pytest.raises(SystemExit, match="0"):
        main()
    said = capsys.readouterr().out
    assert said.startswith("usage: jaxd cache ")
    assert max(map(len, said.splitlines())) <= 80


def test_it_needs_neither_a_server_nor_jax(store: Store) -> None:
    """A process of its own that loads neither jax nor numpy nor rpyc."""
    program = (
        "import sys; from jaxd_server.cache.__main__ import main; code = main(['show', 'step']);"
        "sys.exit(code or bool({'jax', 'numpy', 'rpyc', 'cloudpickle'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
