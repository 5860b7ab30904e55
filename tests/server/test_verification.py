"""Kept programs beside fresh ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxd_protocol.calls import Options
from jaxd_server import jax_disk_cache
from jaxd_server import verification as module
from jaxd_server.functions import Functions
from jaxd_server.kept_calls import KeptCall
from jaxd_server.shelf import Shelf
from jaxd_server.verification import Findings, Verifier
from tests.server.in_process import Kitchen, Source

OpenKitchen = Callable[[], Kitchen]

X: Any = np.arange(6, dtype=np.float32)


class Pair(NamedTuple):
    a: Any
    b: Any


@pytest.fixture
def open_kitchen(runtime: Path) -> Iterator[OpenKitchen]:
    """Opens pipelines, one after the other, that share a folder on disk."""
    kitchens: list[Kitchen] = []

    def open_() -> Kitchen:
        kitchens.append(Kitchen(folder=str(runtime / "cache")))
        return kitchens[-1]

    yield open_
    for kitchen in kitchens:
        kitchen.close()


def shelf_of(kitchen: Kitchen) -> Shelf:
    """What it keeps."""
    assert kitchen.shelf is not None
    return kitchen.shelf


def verify(kitchen: Kitchen, count: int = 10) -> Findings:
    """As an operation does it."""
    functions = kitchen.pipeline.functions
    return Verifier(functions, kitchen.compiler, shelf_of(kitchen)).verify(count)


def kept_call(kitchen: Kitchen, source: Source) -> KeptCall:
    """The one of a function."""
    shelf = shelf_of(kitchen)
    shelf.flush()
    (found,) = [call for call in shelf.calls().values() if call.key == source.key]
    return found


def test_kept_programs_are_the_same_as_fresh_ones(open_kitchen: OpenKitchen) -> None:
    """After a restart, when neither function nor program is in memory; each is traced once."""
    first = open_kitchen()
    first.value(Source(lambda x: {"sum": x.sum(), "sin": jnp.sin(x)}), X)
    first.value(Source(lambda x, key: x + jax.random.normal(key, x.shape)), X, jax.random.key(1))
    shelf_of(first).flush()
    second = open_kitchen()
    assert verify(second) == Findings(checked=2, same=2)
    assert second.counts() == (2, 2)
    assert len(second.executables) == 0


def test_every_kind_of_argument_is_made_up(open_kitchen: OpenKitchen) -> None:
    """Numbers, named tuples, static values, objects that are pickled, other dtypes."""
    kitchen = open_kitchen()

    def mixed(pair: Any, n: Any, flag: Any, z: Any, tree: Any, kind: Any) -> Any:
        small = pair.a.astype(jnp.float32) + pair.b[n % 2]
        return jnp.where(flag, small, 0), z * 2, jax.tree.leaves(tree), kind == "a"

    source = Source(mixed, Options(static_argnames=("kind",)))
    pair = Pair(jnp.ones(2, jnp.bfloat16), np.array([1, 2], np.int8))
    tree = {frozenset({1}): np.ones(3, np.float32)}
    kitchen.value(source, pair, 3, True, 1j, tree, "a")
    assert verify(kitchen) == Findings(checked=1, same=1)


@dataclass
class Setting:
    """What jax cannot trace."""

    table: Any


def test_what_is_static_without_being_declared_is_made_again(open_kitchen: OpenKitchen) -> None:
    """As long as all of it is kept: of arrays in a pickle only the size is."""
    kitchen = open_kitchen()
    kitchen.value(Source(lambda x, how: x * len(how.table)), X, Setting("text"))
    kitchen.value(Source(lambda x, how: x * how[None].table.sum()), X, {None: Setting(X)})
    large = {frozenset({1}): Setting(np.arange(5000.0))}
    kitchen.value(Source(lambda x, how: x * how[frozenset({1})].table.sum()), X, large)
    found = verify(kitchen)
    assert (found.checked, found.same) == (2, 2)
    assert "of which only the size is kept" in found.skipped[0]


def test_donated_arguments_are_made_up_twice(open_kitchen: OpenKitchen) -> None:
    """The first program may have written its result into them."""
    kitchen = open_kitchen()
    source = Source(lambda x: x * 2, Options(donate_argnums=(0,)))
    kitchen.value(source, np.ones(1 << 12, np.float32))
    assert verify(kitchen) == Findings(checked=1, same=1)


def test_another_program_under_the_name_is_found(open_kitchen: OpenKitchen) -> None:
    """Its file is whole, and its checksum right."""
    kitchen = open_kitchen()
    right, wrong = Source(lambda x: x * 3), Source(lambda x: x * 4)
    kitchen.value(right, X)
    kitchen.value(wrong, X)
    store, name = shelf_of(kitchen).store, kept_call(kitchen, right).program
    record = store.read("programs", kept_call(kitchen, wrong).program)
    assert record is not None
    store.write("programs", name, record.content, record.payload)
    assert store.flush(60.0)  # another store reads it
    again = open_kitchen()
    findings = verify(again)
    assert (findings.checked, findings.same, findings.skipped) == (2, 1, [])
    (text,) = findings.different
    assert text.endswith(
        f"(x: float32[6]), key {right.key.hex()[:8]}: array 0 of its results has other bits"
    )


def test_a_program_with_other_results_is_found(open_kitchen: OpenKitchen) -> None:
    """Also when its results cannot even be compared."""
    kitchen = open_kitchen()
    right, wrong = Source(lambda x: x * 3), Source(lambda x: x[:2])
    kitchen.value(right, X)
    kitchen.value(wrong, X)
    store, name = shelf_of(kitchen).store, kept_call(kitchen, right).program
    record = store.read("programs", kept_call(kitchen, wrong).program)
    assert record is not None
    store.write("programs", name, record.content, record.payload)
    assert store.flush(60.0)  # another store reads it
    (text,) = verify(open_kitchen()).different
    assert text.endswith("array 0 of its results has another shape or dtype")


def test_results_that_would_be_read_otherwise_are_found(open_kitchen: OpenKitchen) -> None:
    """The record of the call says how they travel."""
    kitchen = open_kitchen()
    source = Source(lambda x: (x * 3, x * 4))
    kitchen.value(source, X)
    kept = kept_call(kitchen, source)
    (name,) = shelf_of(kitchen).calls()
    content = dict(kept.to_content())
    skeleton, order = content["form"]
    content["form"] = (skeleton, tuple(reversed(order)))
    shelf_of(kitchen).store.write("calls", name, tuple(content.items()))
    assert shelf_of(kitchen).store.flush(60.0)  # another store reads it
    findings = verify(open_kitchen())
    assert findings.skipped == []
    (text,) = findings.different
    assert text.endswith("its results have another structure")


def test_nan_is_the_same_as_nan(open_kitchen: OpenKitchen) -> None:
    """Bits are compared, and the settings that look for it are not in force."""
    kitchen = open_kitchen()
    source = Source(lambda x: x / 0 * 0, Options(config=(("jax_debug_nans", True),)))
    kitchen.answer(source.call([X]))
    assert verify(kitchen).different == []
    kitchen.value(Source(lambda x: x / 0 * 0), X)
    findings = verify(kitchen)
    assert findings.checked == findings.same >= 1


def test_what_is_built_anew_is_found_nowhere(
    open_kitchen: OpenKitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what jax has compiled before, nor is what is compiled now put there."""
    seen: list[bool] = []
    kitchen = open_kitchen()
    compile_ = kitchen.compiler.compile

    def spied(*args: Any) -> Any:
        seen.append(jax_disk_cache._here.bypassed)
        return compile_(*args)

    kitchen.value(Source(lambda x: x + 5), X)
    monkeypatch.setattr(kitchen.compiler, "compile", spied)
    assert verify(kitchen).same == 1
    assert (seen, jax_disk_cache._here.bypassed) == ([True], False)
    assert kitchen.counts() == (2, 2)


def skipped(kitchen: Kitchen) -> str:
    """Why the one that there is was not checked."""
    findings = verify(kitchen)
    assert (findings.checked, findings.different) == (0, [])
    (text,) = findings.skipped
    return text


def test_host_callbacks_are_not_checked(open_kitchen: OpenKitchen) -> None:
    """They are not kept."""
    kitchen = open_kitchen()
    kitchen.value(Source(lambda x: jax.pure_callback(lambda v: v, X, x)), X)
    assert "cannot be kept on disk: callbacks" in skipped(kitchen)


def test_loops_that_may_not_end_are_not_run(open_kitchen: OpenKitchen) -> None:
    """Made-up data would perhaps keep the device for ever; loops that count are run."""
    kitchen = open_kitchen()
    kitchen.value(Source(lambda x: lax.while_loop(lambda c: c.sum() > 0, lambda c: c - 1, x)), X)
    assert "only its data ends" in skipped(kitchen)
    kitchen.value(Source(lambda x: lax.scan(lambda c, a: (c + a, a), 0.0, x)), X)
    assert verify(kitchen).same == 1


def test_large_arguments_are_not_made_up(
    open_kitchen: OpenKitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has other uses for its memory."""
    kitchen = open_kitchen()
    kitchen.value(Source(lambda x: x), X)
    monkeypatch.setattr(module, "_MOST_BYTES", X.nbytes - 1)
    assert "it takes 24 bytes of data" in skipped(kitchen)


def test_programs_of_packages_that_changed_are_not_checked(
    open_kitchen: OpenKitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is served them."""
    kitchen = open_kitchen()
    kitchen.value(Source(lambda x: x), X)
    monkeypatch.setattr(shelf_of(kitchen), "is_current", lambda _: False)
    assert "packages have changed" in skipped(kitchen)


def test_a_program_that_is_gone_is_not_checked(open_kitchen: OpenKitchen) -> None:
    """Such as after a sweep."""
    kitchen = open_kitchen()
    source = Source(lambda x: x)
    kitchen.value(source, X)
    shelf_of(kitchen).store.remove("programs", kept_call(kitchen, source).program)
    assert "not on disk" in skipped(kitchen)


def test_a_function_without_code_is_not_checked(open_kitchen: OpenKitchen) -> None:
    """No client is there to be asked."""
    kitchen = open_kitchen()
    source = Source(lambda x: x)
    kitchen.value(source, X)
    shelf_of(kitchen).flush()
    shelf_of(kitchen).store.remove("code", source.fingerprint)
    again = open_kitchen()
    assert "no client is there" in skipped(again)


def test_as_many_are_checked_as_were_asked_for(open_kitchen: OpenKitchen) -> None:
    """And no more when the server is to end."""
    kitchen = open_kitchen()
    for n in range(3):
        kitchen.value(Source(lambda x, n=n: x + n), X)
    assert verify(kitchen, 2) == Findings(checked=2, same=2)
    verifier = Verifier(Functions(), kitchen.compiler, shelf_of(kitchen))
    assert verifier.verify(2, lambda: False) == Findings()
