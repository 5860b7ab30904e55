"""Checkpoints that the worker writes and reads: `jaxd.save` and `jaxd.restore`."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import ConfigurationError, NotPermitted, ValuesDied, WorkerLost
from jaxd_server.config.options import ServerOptions
from jaxd_server.rpc.services import checkpoints
from tests.end_to_end.gates import Gate
from tests.end_to_end.several_devices import EIGHT, spread_out
from tests.end_to_end.steps import kill
from tests.live_server import LiveServer, run_client, source_environment
from tests.server.in_process import InProcessServer
from tests.server.staging import until

ocp: Any = pytest.importorskip("orbax.checkpoint")

pytestmark = [
    pytest.mark.libraries("orbax.checkpoint"),
    pytest.mark.own_server,
    pytest.mark.filterwarnings("ignore:::orbax"),
]

LARGE: Final = 1 << 15


class State(NamedTuple):
    """A state as programs have it."""

    params: Any
    step: Any


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    """In this process, so that the test sees what it holds."""
    server = InProcessServer()
    yield server
    server.close()


@pytest.fixture
def client(server: InProcessServer) -> Client:
    """Of that server."""
    return server.client()


def a_state(client: Client) -> Any:
    """Arrays of several kinds, with names that orbax would take apart."""
    return client.put(
        State(
            {
                "a.b/c%": np.arange(LARGE, dtype=np.float32),
                "layers": [np.ones((2, 3), np.int32), jnp.arange(4, dtype=jnp.bfloat16)],
                "none": None,
                "empty": np.zeros((0, 3), np.float32),
                "keys": jax.random.split(jax.random.key(3)),
            },
            2.5,
        )
    )


def assert_same(found: Any, expected: Any) -> None:
    """Structure, kinds and bits."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)  # type: ignore[operator]
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.dtype, one.weak_type) == (other.dtype, other.weak_type)
        if jnp.issubdtype(other.dtype, jax.dtypes.prng_key):
            one, other = (jax.random.key_data(each.fetch()) for each in (one, other))  # noqa: PLW2901
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_a_tree_comes_back_as_it_was(client: Client, tmp_path: Path) -> None:
    """Like the one that it was, or as dictionaries; plain orbax reads it as well."""
    state = a_state(client)
    client.save(state, tmp_path / "one").wait()
    assert_same(client.restore(tmp_path / "one", like=state), state)
    shapes = jax.eval_shape(lambda x: x, client.get(state))
    assert_same(client.restore(tmp_path / "one", like=shapes), state)
    plain = client.restore(tmp_path / "one")
    np.testing.assert_array_equal(plain["params"]["layers"]["0"], np.ones((2, 3)))
    np.testing.assert_array_equal(plain["params"]["a.b/c%"], np.arange(LARGE))
    with ocp.StandardCheckpointer() as checkpointer:
        read = checkpointer.restore(tmp_path / "one")
    np.testing.assert_array_equal(read["params"]["a%2Eb%2Fc%25"], np.arange(LARGE))


def test_a_checkpoint_of_orbax_is_restored(client: Client, tmp_path: Path) -> None:
    """With lists where it has lists."""
    tree = {"w": jnp.arange(LARGE, dtype=jnp.float32), "b": [jnp.ones(3), jnp.zeros(2)]}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "theirs", tree)
    found = client.restore(tmp_path / "theirs", like=tree)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)


def test_one_array_is_a_tree_as_well(client: Client, tmp_path: Path) -> None:
    """Whether it is on the server or not."""
    client.save(np.arange(3), tmp_path / "one").wait()
    np.testing.assert_array_equal(client.restore(tmp_path / "one"), np.arange(3))


@pytest.mark.slow
def test_calls_go_on_while_it_is_written(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they donate stays what it was until it is written."""
    gate, write = Gate(tmp_path / "gate"), checkpoints._Save._write

    def slowly(save: Any, tree: Any) -> None:
        Path(gate.path).read_bytes()
        write(save, tree)

    monkeypatch.setattr(checkpoints._Save, "_write", slowly)
    add = client.persistent_call(lambda x: x + 1, donate_argnums=0)
    state = add(client.put(np.zeros(1 << 20, np.float32)))
    saving = client.save({"w": state}, tmp_path / "one")
    with gate.reached():
        for _ in range(3):
            state = add(state)
        assert float(state[0]) == 4.0
    saving.wait()
    restored = client.restore(tmp_path / "one")["w"]
    assert float(restored[0]) == float(restored[-1]) == 1.0


def test_without_room_for_copies_it_is_written_at_once(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls wait, and memory does not grow."""
    monkeypatch.setattr(checkpoints, "host_spare", lambda: 1000)
    saving = client.save(client.put(np.ones(LARGE, np.float32)), tmp_path / "one")
    assert (tmp_path / "one" / "_CHECKPOINT_METADATA").exists()
    saving.wait()


def test_what_is_there_is_replaced_only_where_that_is_asked_for(
    client: Client, tmp_path: Path
) -> None:
    """And nothing else than a checkpoint ever is."""
    one = tmp_path / "one"
    client.save({"w": np.ones(3)}, one).wait()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        client.save({"w": np.zeros(3)}, one)
    client.save({"w": np.zeros(3)}, one, overwrite=True).wait()
    np.testing.assert_array_equal(client.restore(one)["w"], np.zeros(3))
    assert [each.name for each in tmp_path.iterdir()] == ["one"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="no checkpoint"):
        client.save({"w": np.zeros(3)}, other, overwrite=True)
    assert (other / "file").read_text() == "mine"


def during_a_save(monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path, Any], object]) -> None:
    """Has something happen once a save has written all its files, and before they are complete."""
    save = ocp.Checkpointer.save

    def save_and(checkpointer: Any, directory: Any, *args: Any, **kwargs: Any) -> None:
        save(checkpointer, directory, *args, **kwargs)
        happens(Path(directory), kwargs["args"])

    monkeypatch.setattr(ocp.Checkpointer, "save", save_and)


def names_in(folder: Path) -> list[str]:
    """Of what is there."""
    return sorted(each.name for each in folder.iterdir())


def test_two_saves_to_one_path_do_not_mix(
    server: InProcessServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one worker: one is complete, the other one fails, or replaces it."""
    one, both_begun = tmp_path / "one", threading.Event()

    def wait(directory: Path, args: Any) -> None:
        both_begun.wait()
        assert checkpoints._lock_of(str(one)).locked()  # the other one waits

    during_a_save(monkeypatch, wait)
    for overwrite in (False, True):
        both_begun.clear()
        savings = list[Any]()
        for client in (server.client(), server.client()):
            state = {"w": np.full(LARGE, len(savings), np.float32)}
            savings.append(client.save(state, one, overwrite=overwrite))
        both_begun.set()
        failures = 0
        for saving in savings:
            try:
                saving.wait()
            except FileExistsError:
                failures += 1
        assert failures == (0 if overwrite else 1)
        assert len(np.unique(np.asarray(server.client().restore(one)["w"]))) == 1
        assert names_in(tmp_path) == ["one"]


@pytest.mark.slow
@pytest.mark.parametrize("in_one_step", [True, False])
def test_what_another_process_has_saved_meanwhile_stays(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_one_step: bool
) -> None:
    """It was there first; with overwrite=True it is replaced."""
    if not in_one_step:
        monkeypatch.setattr(checkpoints, "_renameat2", lambda *_: False)
    one, other = tmp_path / "one", tmp_path / "other"
    client.save({"w": np.zeros(3)}, other).wait()
    during_a_save(monkeypatch, lambda *_: shutil.copytree(other, one))
    with pytest.raises(FileExistsError):
        client.save({"w": np.ones(3)}, one).wait()
    np.testing.assert_array_equal(client.restore(one)["w"], np.zeros(3))
    shutil.rmtree(one)
    client.save({"w": np.ones(3)}, one, overwrite=True).wait()
    np.testing.assert_array_equal(client.restore(one)["w"], np.ones(3))
    assert names_in(tmp_path) == ["one", "other"]


@pytest.mark.slow
def test_a_failed_save_leaves_no_files_and_holds_no_memory(
    server: InProcessServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before it is waited for nor after that."""
    client, held = server.client(), []
    before = client.put({"w": np.zeros(3)})
    client.save(before, tmp_path / "before").wait()

    def fail(directory: Path, args: Any) -> None:
        arrays = args.item
        held.append(weakref.ref(arrays["w"]))
        Path(f"{directory}.orbax-checkpoint-tmp").mkdir()
        try:
            int(f"{arrays}")
        except ValueError as error:
            raise OSError(28, "No space left on device") from error

    during_a_save(monkeypatch, fail)

    def is_free() -> bool:
        client.put(np.ones(1))  # what the client has released goes with a request
        gc.collect()
        return bool(held) and held[0]() is None

    remove, late = shutil.rmtree, list[Path]()

    def remove_and_write(folder: Any, **kwargs: Any) -> None:
        remove(folder, **kwargs)
        if not late:  # as threads of orbax do
            late.append(Path(folder))
            late[0].mkdir()

    monkeypatch.setattr(shutil, "rmtree", remove_and_write)
    for name in ("before", "new"):
        late.clear()
        saving = client.save({"w": np.ones(LARGE)}, tmp_path / name, overwrite=True)
        until(is_free)
        with pytest.raises(OSError, match="No space left") as raised:
            saving.wait()
        assert raised.value.errno == 28
        held.clear()
        assert names_in(tmp_path) == ["before"]
        with pytest.raises(WorkerLost):  # nothing is kept of it
            saving.wait()


@pytest.mark.slow
def test_foreign_files_are_not_overwritten(client: Client, tmp_path: Path) -> None:
    """Neither those in a checkpoint nor a folder that only looks like one; orbax's own are."""
    one, looks = tmp_path / "one", tmp_path / "looks"
    client.save({"w": np.ones(3)}, one).wait()
    (one / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        client.save({"w": np.zeros(3)}, one, overwrite=True)
    (looks / "run").mkdir(parents=True)
    (looks / "_CHECKPOINT_METADATA").write_text("{}")
    with pytest.raises(FileExistsError, match="cannot be read as a checkpoint"):
        client.save({"w": np.zeros(3)}, looks, overwrite=True)
    assert names_in(looks) == ["_CHECKPOINT_METADATA", "run"]
    tree = {"w": jnp.ones(3), "in": {"b": jnp.ones(LARGE)}}
    for number, kinds in enumerate(({}, {"use_ocdbt": False}, {"use_zarr3": True})):
        theirs = tmp_path / f"theirs{number}"
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**kinds)) as checkpointer:
            checkpointer.save(theirs, args=ocp.args.PyTreeSave(tree))
        client.save({"w": np.zeros(3)}, theirs, overwrite=True).wait()
        assert list(client.restore(theirs)) == ["w"]


@pytest.mark.slow
def test_files_that_come_meanwhile_are_not_overwritten(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is looked at again when the new one is complete."""
    one = tmp_path / "one"
    client.save({"w": np.ones(3)}, one).wait()
    during_a_save(monkeypatch, lambda *_: (one / "notes.txt").write_text("mine"))
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        client.save({"w": np.zeros(3)}, one, overwrite=True).wait()
    np.testing.assert_array_equal(client.restore(one)["w"], np.ones(3))


@pytest.mark.skipif(sys.platform != "linux", reason="no exchange of names in one step")
def test_there_is_always_a_checkpoint_while_one_is_replaced(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that ends at any moment leaves one at the path."""
    rename, one = os.rename, tmp_path / "one"

    def rename_and_look(*args: Any, **kwargs: Any) -> None:
        rename(*args, **kwargs)
        assert one.exists()

    client.save({"w": np.ones(3)}, one).wait()
    monkeypatch.setattr(os, "rename", rename_and_look)
    client.save({"w": np.zeros(3)}, one, overwrite=True).wait()
    np.testing.assert_array_equal(client.restore(one)["w"], np.zeros(3))
    assert names_in(tmp_path) == ["one"]


@pytest.mark.slow
def test_without_an_exchange_a_failure_puts_the_one_before_back(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system has two renames only."""
    rename, one = os.rename, tmp_path / "one"

    def fail(source: Any, target: Any, **kwargs: Any) -> None:
        if str(target) == str(one) and not str(source).endswith(".old"):
            raise OSError(5, "Input/output error")
        rename(source, target, **kwargs)

    client.save({"w": np.ones(3)}, one).wait()
    monkeypatch.setattr(checkpoints, "_renameat2", lambda *_: False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        with pytest.raises(OSError, match="Input/output"):
            client.save({"w": np.zeros(3)}, one, overwrite=True).wait()
    assert names_in(tmp_path) == ["one"]
    np.testing.assert_array_equal(client.restore(one)["w"], np.ones(3))
    client.save({"w": np.zeros(3)}, one, overwrite=True).wait()
    np.testing.assert_array_equal(client.restore(one)["w"], np.zeros(3))
    assert names_in(tmp_path) == ["one"]


def test_links_are_followed(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a link leads to is replaced, not the link; `..` is above that."""
    disk, here = tmp_path / "disk" / "run", tmp_path / "here"
    disk.mkdir(parents=True)
    here.mkdir()
    (here / "link").symlink_to(disk)
    (here / "last").symlink_to(disk / "one")
    monkeypatch.chdir(here)
    for number in range(2):
        client.save({"w": np.full(3, number)}, here / "last", overwrite=True).wait()
        np.testing.assert_array_equal(client.restore(disk / "one")["w"], np.full(3, number))
    client.save({"w": np.ones(3)}, "link/../two").wait()
    assert (here / "last").is_symlink()
    assert names_in(here) == ["last", "link"]
    assert names_in(disk.parent) == ["run", "two"]
    assert names_in(disk) == ["one"]


def test_a_tree_that_is_another_one_is_refused(client: Client, tmp_path: Path) -> None:
    """With the names of what differs, and how."""
    client.save({"a": np.ones(3, np.float32), "b": np.ones(2)}, tmp_path / "one").wait()
    like = {"a": np.ones(4, np.float32), "c": np.ones(2)}
    expected = (
        r"a is float32\[3\] there, and float32\[4\] in the tree; it has no c; the tree has no b"
    )
    with pytest.raises(ValueError, match=expected):
        client.restore(tmp_path / "one", like=like)


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("gs://bucket/x", ConfigurationError, "absolute path on the server's machine"),
        ("there/is/none", FileNotFoundError, "there is no checkpoint"),
    ],
)
def test_a_bad_path_is_said(client: Client, path: str, kind: type[Exception], text: str) -> None:
    """Before anything is read."""
    with pytest.raises(kind, match=text):
        client.restore(path)


def test_a_failure_while_it_is_written_is_raised_once(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever waits for it, or by the next one."""
    is_begun = threading.Event()

    def fail(save: Any, tree: Any) -> None:
        is_begun.wait()
        raise OSError(28, "No space left on device")

    tree = {"w": client.put(np.ones(3))}
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints._Save, "_write", fail)
        client.save(tree, tmp_path / "one")
        is_begun.set()
        with pytest.raises(OSError, match="No space left"):
            client.save(tree, tmp_path / "two")
    client.save(tree, tmp_path / "two").wait()


def test_a_server_without_orbax_says_what_to_install(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its extra."""

    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ConfigurationError, match=r"pip install 'jaxd\[checkpoint\]'"):
        client.save({"w": np.ones(3)}, tmp_path / "one")


@pytest.mark.parametrize(
    ("principal", "options", "text"),
    [
        (f"uid:{os.getuid()}", {}, ""),
        ("account:bob", {"worker_per_principal": True}, ""),
        ("account:bob", {}, "worker-per-principal"),
        (f"uid:{os.getuid() + 1}", {}, "worker-per-principal"),
        ("anonymous@127.0.0.1", {}, "worker-per-principal"),
        (f"uid:{os.getuid()}", {"accept": "exported"}, "programs only"),
    ],
)
def test_files_are_written_for_the_own_user_only(
    principal: str, options: dict[str, Any], text: str
) -> None:
    """Others have a worker of their own, or none of it."""
    given = ServerOptions(**options)
    if not text:
        checkpoints.check_permitted(given, principal)
        return
    with pytest.raises(NotPermitted, match=text):
        checkpoints.check_permitted(given, principal)


@pytest.mark.slow
def test_somebody_elses_files_are_not_written(start_live: Callable[..., LiveServer]) -> None:
    """By a server that all share: told over the wire."""
    server = start_live("--accept", "exported")
    with connect(server.unix) as client, pytest.raises(NotPermitted):
        client.restore("/tmp/one")


@pytest.mark.slow
def test_a_sharded_state_comes_back_where_it_was(eight: LiveServer, tmp_path: Path) -> None:
    """On eight devices, and small things beside it; the next step runs as before."""
    with connect(eight.unix) as client:

        def step(state: Any) -> Any:
            return {"w": spread_out(state["w"]) / 2 + 1, "n": state["n"] + 1}

        train = client.persistent_call(step, donate_argnums=0, results="remote")
        state = train({"w": np.zeros(1 << 20, np.float32), "n": np.int32(0)})
        state = train(state)
        state["w"].block_until_ready()
        moved = _moved(client)
        client.save(state, tmp_path / "one").wait()
        before = [device.bytes_in_use for device in client.devices()]
        restored = client.restore(tmp_path / "one", like=state)
        after = [device.bytes_in_use for device in client.devices()]
        assert _moved(client) - moved < 1 << 16
        grown = [b - a for a, b in zip(before, after, strict=True)]
        assert all((1 << 19) <= each < (1 << 20) for each in grown), grown  # an eighth of 4 MiB
        compiles = client.statistics().compiles
        one, other = train(restored), train(state)
        np.testing.assert_array_equal(np.asarray(one["w"]), np.asarray(other["w"]))
        assert int(one["n"]) == int(other["n"]) == 3
        assert client.statistics().compiles == compiles


DONATES = """
import sys
import jax, jax.numpy as jnp, numpy as np
import orbax.checkpoint as ocp
from jaxd_server.rpc.services import checkpoints

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
state = {"sharded": jax.device_put(jnp.arange(1 << 16), where), "whole": jnp.ones(1 << 14)}
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(sys.argv[1], state)
found = checkpoints._Stored.read(sys.argv[1]).load(sys.argv[1])

def places(array):
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]

for name in sorted(found):
    before = places(found[name])
    after = places(jax.jit(lambda x: x + 1, donate_argnums=0)(found.pop(name)))
    print(*name, len(after), before == after)
"""


@pytest.mark.slow
def test_a_step_takes_the_memory_of_what_was_restored(tmp_path: Path) -> None:
    """Where it is given the state for good, as of one that a program has made."""
    environment = source_environment(tmp_path) | EIGHT
    done = run_client(DONATES, str(tmp_path / "one"), environment=environment)
    assert done.stdout.splitlines() == ["sharded 8 True", "whole 1 True"], done.stderr


def _moved(client: Client) -> int:
    """The bytes that have gone through the sockets of the worker."""
    now = client.statistics()
    return now.bytes_received + now.bytes_sent


@pytest.mark.slow
@pytest.mark.usefixtures("arrays_die_with_workers")
def test_a_loop_goes_on_from_its_checkpoint(
    start_live: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """After its worker has ended, with the same bits; nothing is kept in the client."""
    server = start_live()
    with connect(server.unix) as client:
        add = client.persistent_call(lambda x, n: x * 0.9 + n, donate_argnums=0)
        state: Any = client.put(np.zeros(LARGE, np.float32))
        number = saved = 0
        killed = False
        while number < 12:
            if number == 7 and not killed:
                kill(server)
                killed = True
            try:
                state = add(state, np.float32(number))
                state.block_until_ready()
                number += 1
                if number % 5 == 0:
                    client.save(state, tmp_path / f"{number}").wait()
                    saved = number
            except ValuesDied:
                state, number = client.restore(tmp_path / f"{saved}", like=state), saved
        plain = jnp.zeros(LARGE, jnp.float32)
        step = jax.jit(lambda x, n: x * 0.9 + n)
        for number in range(12):
            plain = step(plain, np.float32(number))
        np.testing.assert_array_equal(np.asarray(state), np.asarray(plain))


@pytest.mark.slow
def test_a_checkpoint_that_the_worker_did_not_complete(
    start_live: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """There is none at its path, and whoever waits for it learns that."""
    server = start_live()
    with connect(server.unix) as client:
        client.save(np.ones(3), tmp_path / "first").wait()
        saving = client.save(np.ones(3), tmp_path / "one")
        saving.wait()
        saving._is_done = False
        kill(server)
        saving.wait()  # it is complete: another worker sees that
        other = type(saving)(client.caller, "another", str(tmp_path / "one"), is_done=False)
        with pytest.raises(WorkerLost, match="Save again"):
            other.wait()


@pytest.mark.slow
def test_restored_arrays_are_made_again_from_their_checkpoint(
    start_live: Callable[..., LiveServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it is the same one."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", "3600")
    server = start_live()
    with connect(server.unix) as client:
        client.save({"w": np.ones(LARGE, np.float32)}, tmp_path / "one").wait()
        state = client.restore(tmp_path / "one")
        add = client.persistent_call(lambda x: x + 1)
        kill(server)
        assert float(add(state["w"])[0]) == 2.0
        client.save({"w": np.zeros(LARGE, np.float32)}, tmp_path / "one", overwrite=True).wait()
        kill(server)
        with pytest.raises(ValuesDied, match="another one by now"):
            np.asarray(add(state["w"]))


@pytest.mark.slow
def test_the_exit_of_a_process_waits_for_its_checkpoint(
    start_live: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """So that a failure is said."""
    server = start_live()
    program = """
import sys, jaxd
saving = jaxd.save({"w": jaxd.put([1.0, 2.0])}, sys.argv[1])
"""
    done = server.run(program, str(tmp_path / "one"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "one" / "_CHECKPOINT_METADATA").exists()
    until(lambda: any(line["event"] == "checkpoint_saved" for line in server.lines))
