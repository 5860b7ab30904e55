"""Recipes for what was called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxd_protocol.errors import ConfigurationError, ProtocolError, WorkerLost
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.transforms import encode_transformation
from jaxd_protocol.messages.function_manifest import FunctionManifest, parameter_names
from jaxd_protocol.messages.recipes import Recipe, dump_recipes, load_recipes
from jaxd_server.rpc.services.recipes import Recorder
from tests.server.in_process import PipelineHarness, Source
from tests.server.rpc.services.conftest import OpenHarness

X: Any = np.arange(6, dtype=np.float32)


def recorder(harness: PipelineHarness) -> Recorder:
    """That of a worker."""
    return Recorder(harness.pipeline)


class Stranger:
    """Another server's client, which has only a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.owner = b"stranger"

    def source(self) -> Source:
        """What a `Call` asks."""
        source = Source(lambda: None)
        source.manifest = FunctionManifest.from_message(self.recipe.manifest)
        source.fingerprint = source.manifest.fingerprint
        source.code_ = self.recipe.code  # type: ignore[assignment]
        source.name, source.key = self.recipe.name, self.recipe.key
        return source


def test_what_was_called_since_the_mark_is_recorded(open_beside: OpenHarness) -> None:
    """Made before or since, each function once with all of its calls; nothing else."""
    harness = open_beside()
    old, used = (Source(lambda x, n=n: x + n) for n in range(2))
    grad = encode_transformation("grad", {"argnums": 0})  # of which a recipe says the plain name
    new = Source(lambda x: (x**3).sum(), Options(transformations=(grad,)))
    harness.value(old, X)
    harness.value(used, X)
    records = recorder(harness)
    mark = records.mark()
    harness.value(used, X)
    harness.value(new, X)
    harness.value(new, X[:2])
    recipes, left_out = records.since(mark)
    assert left_out == []
    assert {recipe.key: len(recipe.calls) for recipe in recipes} == {used.key: 1, new.key: 2}
    recipe = next(recipe for recipe in recipes if recipe.key == used.key)
    assert (recipe.name, recipe.options) == (used.name, used.options.to_bytes())
    assert recipe.manifest == used.manifest.to_message()
    assert recipe.parameters == parameter_names(used.function)
    assert recipe.code == bytes(used.code_)
    recipe = next(recipe for recipe in recipes if recipe.key == new.key)
    assert (recipe.name, recipe.options) == (new.name, new.options.to_bytes())
    assert records.since(records.mark()) == ([], [])


@pytest.mark.slow
def test_a_recipe_builds_the_same_elsewhere(open_beside: OpenHarness) -> None:
    """Over the wire, by somebody who does not have the function; its call is then a hit."""
    harness = open_beside()
    source = Source(lambda x, tree: x + len(tree))
    records = recorder(harness)
    mark = records.mark()
    harness.value(source, X, {frozenset({1}): X})
    (recipe,) = load_recipes(*dump_recipes(records.since(mark)[0]))
    elsewhere = open_beside("elsewhere")
    (call,) = recipe.calls
    warming = Stranger(recipe).source().call([])
    warming.skeleton, warming.blob, warming.buffers = call.skeleton, b"", call.buffers()
    warming.warm_only = True
    elsewhere.answer(warming)
    assert elsewhere.counts() == (1, 1)
    assert elsewhere.value(source, X, {frozenset({1}): X}).tolist() == (X + 1).tolist()
    assert elsewhere.counts() == (1, 1)


def test_what_was_made_since_is_recorded_although_it_was_dropped(
    open_beside: OpenHarness,
) -> None:
    """Memory is small, the disk is not."""
    harness = open_beside()
    source = Source(lambda x: x + 1)
    records = recorder(harness)
    mark = records.mark()
    harness.value(source, X)
    harness.executables.forget(source.key)
    (recipe,), _ = records.since(mark)
    assert (recipe.key, len(recipe.calls)) == (source.key, 1)


def test_functions_whose_key_is_of_one_process_are_left_out(open_beside: OpenHarness) -> None:
    """And named, with the reason."""
    harness = open_beside()
    source = Source(lambda x: x + 1)
    manifest = source.manifest
    source.manifest = FunctionManifest(manifest.fingerprint, shared=False)
    records = recorder(harness)
    mark = records.mark()
    harness.value(source, X)
    recipes, (left_out,) = records.since(mark)
    assert recipes == []
    assert (left_out.name, left_out.key) == (source.name, source.key.hex())
    assert "one process only" in left_out.reason


def test_functions_whose_code_is_not_there_are_left_out(open_beside: OpenHarness) -> None:
    """Such as after the disk was full."""
    harness = open_beside()
    source = Source(lambda x: x + 1)
    records = recorder(harness)
    mark = records.mark()
    harness.value(source, X)
    assert harness.program_cache is not None
    harness.program_cache.flush()
    harness.program_cache.store.remove("code", source.fingerprint)
    recipes, (left_out,) = records.since(mark)
    assert recipes == []
    assert "code is not on disk" in left_out.reason


def test_where_nothing_is_kept_nothing_is_recorded(open_beside: OpenHarness) -> None:
    """Said at the beginning, and not after a long run."""
    records = recorder(open_beside(None))
    with pytest.raises(ConfigurationError, match="keeps nothing on disk"):
        records.mark()
    with pytest.raises(ConfigurationError, match="keeps nothing on disk"):
        records.since("x")


def test_a_mark_of_another_worker_is_refused(open_beside: OpenHarness) -> None:
    """What that one was called with is not known; nor is what is no mark one."""
    harness = open_beside()
    with pytest.raises(WorkerLost, match="Record again"):
        recorder(harness).since(recorder(harness).mark())
    for mark in ("x", "a b c", "a 1.0", "a 1.0 2.0 3.0"):
        with pytest.raises(ProtocolError, match="cannot be read"):
            recorder(harness).since(mark)
