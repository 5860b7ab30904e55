"""Recipes for what was called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
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

OpenKitchen = Callable[..., PipelineHarness]

X: Any = np.arange(6, dtype=np.float32)


@pytest.fixture
def open_kitchen(runtime: Path) -> Iterator[OpenKitchen]:
    """Opens pipelines with folders on disk of their own."""
    kitchens: list[PipelineHarness] = []

    def open_(folder: str | None = "a") -> PipelineHarness:
        kitchens.append(PipelineHarness(folder=folder and str(runtime / folder)))
        return kitchens[-1]

    yield open_
    for kitchen in kitchens:
        kitchen.close()


def recorder(kitchen: PipelineHarness) -> Recorder:
    """That of a worker."""
    pipeline = kitchen.pipeline
    return Recorder(pipeline.executables, pipeline.build_log, pipeline.shelf)


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


def test_what_was_called_since_the_mark_is_recorded(open_kitchen: OpenKitchen) -> None:
    """Made before or since, each function once with all of its calls; nothing else."""
    kitchen = open_kitchen()
    old, used, new = (Source(lambda x, n=n: x + n) for n in range(3))
    kitchen.value(old, X)
    kitchen.value(used, X)
    records = recorder(kitchen)
    mark = records.mark()
    kitchen.value(used, X)
    kitchen.value(new, X)
    kitchen.value(new, X[:2])
    recipes, left_out = records.since(mark)
    assert left_out == []
    assert {recipe.key: len(recipe.calls) for recipe in recipes} == {used.key: 1, new.key: 2}
    recipe = next(recipe for recipe in recipes if recipe.key == used.key)
    assert (recipe.name, recipe.options) == (used.name, used.options.to_bytes())
    assert recipe.manifest == used.manifest.to_message()
    assert recipe.parameters == parameter_names(used.function)
    assert recipe.code == bytes(used.code_)
    assert records.since(records.mark()) == ([], [])


def test_a_recipe_builds_the_same_elsewhere(open_kitchen: OpenKitchen) -> None:
    """Over the wire, by somebody who does not have the function; its call is then a hit."""
    kitchen = open_kitchen()
    source = Source(lambda x, tree: x + len(tree))
    records = recorder(kitchen)
    mark = records.mark()
    kitchen.value(source, X, {frozenset({1}): X})
    (recipe,) = load_recipes(*dump_recipes(records.since(mark)[0]))
    elsewhere = open_kitchen("b")
    (call,) = recipe.calls
    warming = Stranger(recipe).source().call([])
    warming.skeleton, warming.blob, warming.buffers = call.skeleton, b"", call.buffers()
    warming.warm_only = True
    elsewhere.answer(warming)
    assert elsewhere.counts() == (1, 1)
    assert elsewhere.value(source, X, {frozenset({1}): X}).tolist() == (X + 1).tolist()
    assert elsewhere.counts() == (1, 1)


def test_a_recipe_of_a_transformed_function_says_both(open_kitchen: OpenKitchen) -> None:
    """The name of the function, which its fingerprint is checked under, and the list."""
    kitchen = open_kitchen()
    grad = encode_transformation("grad", {"argnums": 0})
    source = Source(lambda x: x**3, Options(transformations=(grad,)))
    records = recorder(kitchen)
    mark = records.mark()
    kitchen.value(source, 2.0)
    (recipe,) = records.since(mark)[0]
    assert (recipe.name, recipe.options) == (source.name, source.options.to_bytes())
    assert recipe.key == source.key


def test_what_was_made_since_is_recorded_although_it_was_dropped(
    open_kitchen: OpenKitchen,
) -> None:
    """Memory is small, the disk is not."""
    kitchen = open_kitchen()
    source = Source(lambda x: x + 1)
    records = recorder(kitchen)
    mark = records.mark()
    kitchen.value(source, X)
    kitchen.executables.forget(source.key)
    (recipe,), _ = records.since(mark)
    assert (recipe.key, len(recipe.calls)) == (source.key, 1)


def test_functions_whose_key_is_of_one_process_are_left_out(open_kitchen: OpenKitchen) -> None:
    """And named, with the reason."""
    kitchen = open_kitchen()
    source = Source(lambda x: x + 1)
    manifest = source.manifest
    source.manifest = FunctionManifest(manifest.fingerprint, shared=False)
    records = recorder(kitchen)
    mark = records.mark()
    kitchen.value(source, X)
    recipes, (left_out,) = records.since(mark)
    assert recipes == []
    assert (left_out.name, left_out.key) == (source.name, source.key.hex())
    assert "one process only" in left_out.reason


def test_functions_whose_code_is_not_there_are_left_out(open_kitchen: OpenKitchen) -> None:
    """Such as after the disk was full."""
    kitchen = open_kitchen()
    source = Source(lambda x: x + 1)
    records = recorder(kitchen)
    mark = records.mark()
    kitchen.value(source, X)
    assert kitchen.shelf is not None
    kitchen.shelf.flush()
    kitchen.shelf.store.remove("code", source.fingerprint)
    recipes, (left_out,) = records.since(mark)
    assert recipes == []
    assert "code is not on disk" in left_out.reason


def test_where_nothing_is_kept_nothing_is_recorded(open_kitchen: OpenKitchen) -> None:
    """Said at the beginning, and not after a long run."""
    records = recorder(open_kitchen(None))
    with pytest.raises(ConfigurationError, match="keeps nothing on disk"):
        records.mark()
    with pytest.raises(ConfigurationError, match="keeps nothing on disk"):
        records.since("x")


def test_a_mark_of_another_worker_is_refused(open_kitchen: OpenKitchen) -> None:
    """What that one was called with is not known."""
    kitchen = open_kitchen()
    with pytest.raises(WorkerLost, match="Record again"):
        recorder(kitchen).since(recorder(kitchen).mark())


@pytest.mark.parametrize("mark", ["x", "a b c", "a 1.0", "a 1.0 2.0 3.0"])
def test_a_mark_that_is_none_is_refused(open_kitchen: OpenKitchen, mark: str) -> None:
    """It comes from a client."""
    with pytest.raises(ProtocolError, match="cannot be read"):
        recorder(open_kitchen()).since(mark)
