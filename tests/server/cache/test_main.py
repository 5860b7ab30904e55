from __future__ import annotations

import fcntl
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd.request.arguments import encode_arguments
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_server.cache.__main__ import main
from jaxd_server.cache.store import Store
from tests.server.cache.keeping import file_of, keep_call, open_here, unused_for, usage_of


@pytest.fixture
def root(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of the environment; not made yet."""
    monkeypatch.setenv("JAXD_CACHE_DIR", str(runtime / "cache"))
    return runtime / "cache"


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """A store with two calls that have one program, the second used an hour ago."""
    store = open_here(root)
    skeleton = bytes(
        encode_arguments((np.zeros((3, 4), np.float32),), {}, StaticArgs(), {}).skeleton
    )
    keep_call(store, b"\xaa\xbb\xcc", program=b"\x77" * 16, skeleton=skeleton)
    keep_call(store, b"\xdd\xee\xff", program=b"\x77" * 16, name="step2", principal="")
    unused_for(3 * 3600, file_of(root, "calls", b"\xdd\xee\xff"))
    yield store
    assert store.close()


def said_as_json(capsys: pytest.CaptureFixture[str]) -> Any:
    """What the command has printed."""
    return json.loads(capsys.readouterr().out)


def test_ls_shows_what_is_kept(
    store: Store, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line each, the one used last first, and how much it is in all."""
    assert main(["ls"]) == 0
    head, first, second, total = capsys.readouterr().out.splitlines()
    assert head.split() == ["key", "function", "arguments", "build", "size", "last", "use"]
    assert first.startswith("aabbcc  step      x: float32[3,4]  1.25 s")
    assert second.startswith("ddeeff  step2")
    assert second.endswith("3 h ago")
    assert total == f"2 kept, 20.5 kB in {root}"


def test_ls_is_for_programs_too(
    store: Store, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One JSON object with every field."""
    assert main(["ls", "--json"]) == 0
    said = said_as_json(capsys)
    assert said["folder"] == str(root)
    assert said["files"] == {"calls": 2, "programs": 1}
    assert said["bytes"] == usage_of(store).bytes
    first = said["calls"][0]
    assert (first["name"], first["arguments"]) == ("step", {"x": "float32[3,4]"})
    assert (first["build_s"], first["shared_with"]) == (1.25, ["ddeeff"])


def test_ls_of_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No error, and no folder is made."""
    assert main(["ls"]) == 0
    assert capsys.readouterr().out == f"0 kept, 0 B in {root}\n"
    assert not root.exists()


@pytest.mark.parametrize("key", ["aabbcc", "AABB", "step", "aabbc"])
def test_show_finds_one_by_its_first_digits_or_its_name(
    store: Store, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    """As `ls` shows them."""
    assert main(["show", key]) == 0
    said = capsys.readouterr().out
    assert said.count("function ") == 1
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


@pytest.mark.parametrize("key", ["11111111", "7777"])
def test_show_finds_all_of_a_key_and_of_a_program(
    store: Store, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    """A function has many signatures, and a program may have many functions."""
    assert main(["show", key, "--json"]) == 0
    said = said_as_json(capsys)
    assert [call["record"] for call in said["calls"]] == ["aabbcc", "ddeeff"]
    assert said["calls"][0]["facts"] == {"jax": "1.2.3"}


@pytest.mark.parametrize("key", ["aab", "ffff", "nothing", ""])
def test_show_of_nothing_exits_with_1(
    store: Store, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    """It says where to look; three digits are too few to mean anything."""
    assert main(["show", key]) == 1
    assert capsys.readouterr().err == f"jaxd: nothing kept is called {key}. See: jaxd cache ls\n"


def test_show_says_what_is_in_the_way(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Why a program is compiled anew after each restart."""
    keep_call(store, b"\x12\x34", name="noisy", obstacle="callbacks")
    assert main(["show", "noisy"]) == 0
    assert "not kept     its program: callbacks" in capsys.readouterr().out


def test_what_is_packed_is_unpacked_elsewhere(
    store: Store, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the code of functions, and what is broken or signed with another key."""
    monkeypatch.setenv("JAXD_STORE_KEY", "a-key-of-tests-0123456789-abcdefghij")
    store.write("code", b"\x11", (), b"code")
    store.flush(10)
    archive, other = str(root.parent / "jaxd.tar"), str(root.parent / "other")
    assert main(["pack", archive]) == 0
    assert capsys.readouterr().out.startswith("packed 3 files, ")
    assert main(["unpack", archive, "--cache-dir", other]) == 0
    assert capsys.readouterr().out.startswith("unpacked 3 files, ")
    assert main(["verify", "--cache-dir", other]) == 0
    assert main(["ls", "--cache-dir", other]) == 0
    assert "step2" in capsys.readouterr().out
    program = file_of(root, "programs", b"\x77" * 16)
    program.write_bytes(program.read_bytes()[:-1])
    assert main(["pack", archive]) == 0
    assert "1 are broken and were left out" in capsys.readouterr().out
    monkeypatch.setenv("JAXD_STORE_KEY", "another-key-of-tests-0123456789-abcdefghij")
    assert main(["unpack", archive, "--cache-dir", str(root.parent / "third"), "--json"]) == 1
    assert said_as_json(capsys)["refused"] == 2
    assert main(["ls", "--cache-dir", str(root.parent / "third")]) == 0
    assert capsys.readouterr().out.startswith("0 kept")


def test_what_is_no_archive_is_not_unpacked(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a file that is not there."""
    monkeypatch.setenv("JAXD_STORE_KEY", "a-key-of-tests-0123456789-abcdefghij")
    (root.parent / "text").write_text("text")
    assert main(["unpack", str(root.parent / "text")]) == 1
    assert "is no archive of `jaxd cache pack`" in capsys.readouterr().err
    assert main(["unpack", str(root.parent / "none")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_gc_removes_down_to_a_size(
    store: Store, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was used last stays."""
    assert main(["gc", "--max-bytes", "16K"]) == 0
    assert capsys.readouterr().out == f"removed 1 files, 4.1 kB; 16.4 kB left in {root}\n"
    assert store.names("calls") == [b"\xaa\xbb\xcc"]
    assert main(["gc", "--json"]) == 0
    assert said_as_json(capsys) == {"files": 0, "bytes": 0, "left": 16384}


def test_verify_finds_nothing_wrong(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """It says how much it has looked at."""
    assert main(["verify"]) == 0
    assert capsys.readouterr().out == "3 files checked, 0 broken\n"


def test_verify_removes_what_is_broken_and_exits_with_1(
    store: Store, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with its reason; the second time all is well."""
    program = file_of(root, "programs", b"\x77" * 16)
    data = program.read_bytes()
    program.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    folder = file_of(root, "calls", b"\x55")
    folder.mkdir()
    assert main(["verify", "--json"]) == 1
    said = said_as_json(capsys)
    assert said["checked"] == 4
    assert {each["path"]: each["reason"] for each in said["broken"]} == {
        str(program): "its payload was changed",
        str(folder): "it cannot be opened: Is a directory",
    }
    assert not program.exists()
    assert not folder.exists()
    assert main(["verify"]) == 0


def test_clear_removes_all(store: Store, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without asking where nobody can answer."""
    assert main(["clear"]) == 0
    assert capsys.readouterr().out == "removed 3 files, 20.5 kB\n"
    assert os.listdir(root / "v2") == []


class Terminal(io.StringIO):
    """Stands for a terminal at which somebody types."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.mark.parametrize(
    ("typed", "words", "left"), [("n\n", [], 1), ("\n", [], 1), ("y\n", [], 0), ("", ["--yes"], 0)]
)
def test_clear_asks_on_a_terminal(
    store: Store,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    words: list[str],
    left: int,
) -> None:
    """Anything but yes leaves all as it is, with exit code 1; `--yes` is not asked."""
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert main(["clear", *words]) == left
    assert len(os.listdir(root / "v2")) == left


OLD = "v1/0123456789abcdef"


def test_purge_removes_all_that_jaxd_keeps(
    store: Store, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the folder; first, `--dry-run` says how large each part is, and removes nothing."""
    named = ("eager/jit_f-0a-cache", "quarantine/0123456789abcdef.json", "use/use.json")
    for file in (*named, f"{OLD}/target.json"):
        (root / file).parent.mkdir(parents=True)
        (root / file).write_bytes(b"x" * 5000)
    assert main(["purge", "--dry-run"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0][:2] == ["would", "remove"]
    parts = ["CACHEDIR.TAG", "eager", "quarantine", "use", "v1", "v2"]
    assert [row[0] for row in rows[1:]] == parts
    assert rows[2] == ["eager", "1", "files", "8.19", "kB"]
    files = [path for path in root.rglob("*") if path.is_file()]
    assert main(["purge"]) == 0
    assert capsys.readouterr().out.startswith(f"removed {len(files)} files, ")
    assert not root.exists()
    assert main(["purge", "--json"]) == 0
    assert said_as_json(capsys) == {"folder": str(root), "bytes": 0, "files": 0}


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


def test_clear_has_a_dry_run(store: Store, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says the same as without, and removes nothing."""
    assert main(["clear", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(f"would remove 3 files, 20.5 kB, from {root}\n")
    assert main(["ls", "--json"]) == 0
    assert len(said_as_json(capsys)["calls"]) == 2


def test_purge_asks_on_a_terminal(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anything but yes, and the end of the input, leave all as it is."""
    for typed, code in (("n\n", 1), ("", 130)):
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        assert main(["purge"]) == code
        assert f"from {root}? [y/N]" in capsys.readouterr().out
        assert root.exists()
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert main(["purge"]) == 0
    assert not root.exists()
    capsys.readouterr()
    assert main(["purge"]) == 0  # and where nothing is, nobody is asked
    assert capsys.readouterr().out == "removed 0 files, 0 B\n"


def test_purge_names_the_servers_that_run(
    store: Store, root: Path, runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They write there again; those of other environments too."""
    folder = runtime / "jaxd" / "0123456789ab"
    folder.mkdir(parents=True)
    address = f"unix://{folder}/server.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/server.sock")
        listener.listen()
        assert main(["purge"]) == 0
        assert f"Stop it first: jaxd stop --server {address}\n" in capsys.readouterr().err
    assert main(["purge"]) == 0
    assert capsys.readouterr().err == ""


def test_purge_leaves_the_table_of_users_to_its_server(
    store: Store, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a server with a worker for each principal, which holds a lock of the folder."""
    descriptor = os.open(root, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert main(["purge", "--yes"]) == 1
    assert "Stop it first: jaxd stop" in capsys.readouterr().err
    assert (root / "v2").exists()
    os.close(descriptor)
    assert main(["purge", "--yes"]) == 0


def test_what_cannot_be_removed_is_said(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was not freed."""
    monkeypatch.setattr("jaxd_server.cache.sweep.shutil.rmtree", lambda *_, **__: None)
    assert main(["purge"]) == 1
    said = capsys.readouterr()
    assert said.out == "removed 1 files, 4.1 kB\n"
    assert f"are left in {root}" in said.err


def test_another_folder_can_be_named(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the server's option of the same name."""
    monkeypatch.setenv("JAXD_CACHE_DIR", "/nowhere")
    assert main(["ls", "--json", "--cache-dir", str(root)]) == 0
    assert len(said_as_json(capsys)["calls"]) == 2


@pytest.mark.parametrize("command", ["ls", "gc", "verify", "clear"])
def test_a_folder_that_others_can_write_is_left_alone(
    store: Store, root: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """As the server does it, with what to do."""
    root.chmod(0o777)
    assert main([command]) == 1
    assert f"run: chmod go-w {root}" in capsys.readouterr().err
    assert len(store.names("calls")) == 2
    root.chmod(0o700)


def test_a_cache_that_is_switched_off_has_no_commands(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, with exit code 1."""
    monkeypatch.setenv("JAXD_CACHE_DIR", "none")
    assert main(["ls"]) == 1
    assert capsys.readouterr().err.startswith("jaxd: the cache is switched off")


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
