"""Which settings of libraries on jax are not as in a fresh process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxd.interop.library_state import LibrarySettings
from tests.fake_packages import FakeSite

CONFIG = """
import dataclasses, os, typing

ON_ERROR = os.environ.get("ZZ_ON_ERROR", "raise")
LIMIT = os.getenv("ZZ_LIMIT")
LIMIT = None if LIMIT is None else int(LIMIT)
by_name = {"norm": "component", "deep": {"eps": 0.5}}
cache = {}

class Config:
    def __init__(self):
        self.values = {"fix": False, "level": 1}
        self.calls = 0

    def update(self, name, value):
        self.values[name] = value

config = Config()
"""

SETTERS = """
import jax
from zz_on_jax import config

PRECISION = "float32"
counted = 0
warned = False
lazy = None
twice = True
if jax.__version__:
    twice = False

def set_precision(value):
    global PRECISION
    PRECISION = str(value)

def set_twice(value):
    global twice
    twice = value

def use():
    global counted, warned, lazy
    counted, lazy = counted + 1, "found"
    warned = True

class Meta(type):
    pass

class Distribution(metaclass=Meta):
    checks = True
    name: str = PRECISION

    @staticmethod
    def set_checks(value):
        Distribution.checks = value

    @classmethod
    def rename(cls, value):
        cls.name = value

    def __init__(self, value):
        self.checks = value
"""

EFFECTS = """
import atexit, os
HOME = os.path.expanduser("~")
LEVEL = 1.0
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """One that requires jax; `load` imports it, with a variable of the environment."""
    site = FakeSite(tmp_path)
    files = {"__init__": "", "config": CONFIG, "setters": SETTERS, "effects": EFFECTS}
    for name, needs in (("zz_on_jax", ["jax"]), ("zz_on_nothing", [])):
        texts = {f"{name}/{file}.py": text for file, text in files.items()}
        site.install(name, "1.0", texts, requires=needs)
    monkeypatch.syspath_prepend(site.path)
    yield importlib.import_module
    for name in [name for name in sys.modules if name.startswith("zz_on_")]:
        del sys.modules[name]


def changed(settings: LibrarySettings) -> dict[str, str]:
    """Those of the library."""
    return {name: text for name, text in settings.changed() if name.startswith("zz_on_")}


Change = Callable[[Any, Any], object]

CHANGES: dict[str, tuple[Change, dict[str, str]]] = {
    "a global": (lambda c, _: setattr(c, "ON_ERROR", "nan"), {"config.ON_ERROR": "'nan'"}),
    "none before": (lambda c, _: setattr(c, "LIMIT", 3), {"config.LIMIT": "3"}),
    "in a dict": (
        lambda c, _: c.by_name["deep"].update(eps=1.0),
        {"config.by_name.deep.eps": "1.0"},
    ),
    "in an object": (
        lambda c, _: c.config.update("fix", True),
        {"config.config.values.fix": "True"},
    ),
    "by a function": (lambda _, s: s.set_precision("half"), {"setters.PRECISION": "'half'"}),
    "of a class": (
        lambda _, s: s.Distribution.set_checks(False),
        {"setters.Distribution.checks": "False"},
    ),
    "by a class method": (
        lambda _, s: s.Distribution.rename("other"),
        {"setters.Distribution.name": "'other'"},
    ),
    "what counts": (lambda c, _: vars(c.config).update(calls=7), {}),
    "what is kept": (lambda c, _: c.cache.update(key=1), {}),
    "what is used": (lambda _, s: s.use(), {}),
    "of an instance": (lambda _, s: s.Distribution(False), {}),
    "one of two at first": (lambda _, s: s.set_twice(True), {}),
}


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("which", CHANGES)
def test_what_was_set_is_found(library: Any, which: str, is_new: bool) -> None:
    """Wherever it is, also where nobody has looked before; not what counts, and not what keeps."""
    settings = LibrarySettings()
    config, setters = library("zz_on_jax.config"), library("zz_on_jax.setters")
    if not is_new:
        assert changed(settings) == {}
    change, expected = CHANGES[which]
    change(config, setters)
    assert changed(settings) == {f"zz_on_jax.{name}": text for name, text in expected.items()}


def test_what_comes_from_the_environment_is_a_setting(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was when the module was imported."""
    monkeypatch.setenv("ZZ_ON_ERROR", "off")
    library("zz_on_jax.config")
    monkeypatch.delenv("ZZ_ON_ERROR")
    assert changed(LibrarySettings()) == {"zz_on_jax.config.ON_ERROR": "'off'"}


def test_a_module_that_does_more_is_not_run_again(library: Any) -> None:
    """Nor is one of a library that does not require jax."""
    library("zz_on_jax.effects").LEVEL = 2.0
    library("zz_on_nothing.config").ON_ERROR = "nan"
    assert changed(LibrarySettings()) == {}


def test_what_is_set_back_is_no_setting_any_more(library: Any) -> None:
    """And modules that are loaded later are found."""
    settings = LibrarySettings()
    assert changed(settings) == {}
    config = library("zz_on_jax.config")
    config.config.update("fix", True)
    assert changed(settings) == {"zz_on_jax.config.config.values.fix": "True"}
    config.config.update("fix", False)
    assert changed(settings) == {}


def test_libraries_have_none_at_first() -> None:
    """Those that are installed for the tests, once they are imported."""
    for name in ("chex", "diffrax", "equinox", "flax.nnx", "numpyro", "optax"):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    assert LibrarySettings().changed() == ()
