"""One random edit of a random package: a key changes exactly when the meaning does."""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxd_protocol.fingerprint import walk
from tests.identity.random_projects import ANYWHERE, EVEN_IN_SOURCES, LINKS, PIECES, Swap, render

pytestmark = pytest.mark.soak

PACKAGE = "randomly_edited"
MODULES = ("first", "second", "third", "fourth")
ARGUMENT = 4


@dataclass(frozen=True, slots=True)
class Project:
    """The text of each module, and which pieces it is made of."""

    texts: dict[str, str]
    pieces: dict[str, list[str]]

    def edited(self, module: str, swap: Swap) -> dict[str, str]:
        """The texts after one edit."""
        text = self.texts[module]
        assert text.count(swap[0]) == 1, f"{swap[0]!r} is not there, or not once"
        return self.texts | {module: text.replace(*swap)}


@dataclass(frozen=True, slots=True)
class Seen:
    """The digest before the first call, that after it, and the call's result."""

    before: bytes
    after: bytes
    result: int


@st.composite
def projects(draw: st.DrawFn) -> Project:
    """Two to four modules, each reaching the next in one of many ways."""
    names = MODULES[: draw(st.integers(2, 4))]
    pieces = {
        name: draw(st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=5, unique=True))
        for name in names
    }
    following = dict(pairwise(names))
    texts = {
        name: render(
            PACKAGE,
            pieces[name],
            draw(st.sampled_from(sorted(LINKS))) if name in following else None,
            following.get(name, ""),
        )
        for name in names
    }
    return Project(texts, pieces)


@contextmanager
def imported(texts: dict[str, str]) -> Iterator[ModuleType]:
    """The package as it is first imported, in a folder of its own; then it is gone."""
    folder = tempfile.mkdtemp(prefix="jaxd-")
    root = Path(folder, PACKAGE)
    root.mkdir()
    for name, text in ({"__init__": ""} | texts).items():
        (root / f"{name}.py").write_text(text)
    path = list(sys.path)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(f"{PACKAGE}.first")
    finally:
        sys.path[:] = path
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]
        shutil.rmtree(folder)


def seen(texts: dict[str, str]) -> Seen:
    """Walks, calls, walks again."""
    with imported(texts) as first:
        go: Any = first.go
        before = walk(go, "go").fingerprint
        result = go(ARGUMENT)
        after = walk(go, "go").fingerprint
        assert before.unshared == after.unshared == ()
        return Seen(before.digest, after.digest, result)


@pytest.fixture(autouse=True)
def no_compiled_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each package is imported once."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


many = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@many
@given(project=projects(), data=st.data())
def test_an_edit_that_means_something_changes_the_key(
    project: Project, data: st.DataObject
) -> None:
    """In whichever module, however it is reached; and the result shows that it means something."""
    module = data.draw(st.sampled_from(sorted(project.texts)), "module")
    piece = data.draw(st.sampled_from(sorted(project.pieces[module])), "piece")
    swap = data.draw(st.sampled_from(PIECES[piece].changes), "edit")
    one, other = seen(project.texts), seen(project.edited(module, swap))
    assert one.result != other.result, "the table calls this edit a change, and it is none"
    assert one.before != other.before
    assert one.after != other.after


@many
@given(project=projects(), data=st.data())
def test_an_edit_that_means_nothing_keeps_the_key(project: Project, data: st.DataObject) -> None:
    """Once everything is imported; of a module that is not, comments do not count."""
    module = data.draw(st.sampled_from(sorted(project.texts)), "module")
    own = [swap for name in project.pieces[module] for swap in PIECES[name].keeps]
    swap = data.draw(st.sampled_from([*own, *ANYWHERE]), "edit")
    one, other = seen(project.texts), seen(project.edited(module, swap))
    assert one.result == other.result, "the table calls this edit harmless, and it is not"
    assert one.after == other.after
    if swap in EVEN_IN_SOURCES:
        assert one.before == other.before


@pytest.mark.parametrize("name", PIECES)
def test_each_edit_of_the_table_is_what_it_says(name: str) -> None:
    """Each is tried once, so that no random draw is needed to find a bad row."""
    project = Project({"first": render(PACKAGE, [name], None, "")}, {"first": [name]})
    plain = seen(project.texts)
    for swap in PIECES[name].changes:
        edited = seen(project.edited("first", swap))
        assert (edited.result != plain.result, edited.after != plain.after) == (True, True), swap
    for swap in PIECES[name].keeps:
        edited = seen(project.edited("first", swap))
        assert (edited.result, edited.after) == (plain.result, plain.after), swap
