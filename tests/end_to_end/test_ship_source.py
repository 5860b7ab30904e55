"""`ship="source"`: whole packages travel, and code that computes the names of modules runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live_server import LiveServer

pytestmark = pytest.mark.soak

PACKAGE = {
    "shop/__init__.py": "REGISTRY = {}\nfrom . import base\n",
    "shop/base.py": """
from __future__ import annotations
import importlib, sys
from dataclasses import dataclass
from typing import ClassVar
import jax
from . import REGISTRY, circle
RATE = 2.0
MARK = object()
cfg = type("Cfg", (), {})()
cfg.lr = 3.0
def register(name):
    def enter(cls):
        REGISTRY[name] = cls
        return cls
    return enter
def load(name):
    importlib.import_module(f"{__package__}.plugins.{name}")
    return REGISTRY[name]()
def relative(name):
    return importlib.import_module("." + name, __package__)
def me():
    return sys.modules[__name__].RATE
@jax.tree_util.register_dataclass
@dataclass
class Params:
    w: jax.Array
    KIND: ClassVar[str] = "params"
def scaled(params, x):
    assert type(params) is Params
    return Params(params.w * x * RATE)
def make(factor):
    def inner(x):
        return x * factor * RATE
    return inner
""",
    "shop/circle.py": "from . import base\ndef go(x):\n    return x * base.RATE\n",
    "shop/plugins/__init__.py": "",
    "shop/plugins/dense.py": """
from ..base import RATE, register
@register("dense")
class Dense:
    def __call__(self, x):
        return x + RATE
""",
    "shop/plugins/wide.py": """
from shop.base import register
@register("wide")
class Wide:
    def __call__(self, x):
        return x + 100
""",
    "shop/trained.py": """
from jaxd import Bucket, persistent_call
from .base import RATE
@persistent_call(ship="source")
def inner(x):
    return x * RATE
@persistent_call(ship="source")
def step(x):
    return inner(x) + 1
@persistent_call(ship="source", bucket={"x": {0: Bucket((4, 8), length="n")}})
def total(x, n=None):
    return x.shape[0] * 100 + n
@persistent_call(ship="source")
def both(x):
    return total(x)
""",
}

MAIN = """
import importlib, json, sys
import numpy as np
from jaxd import errors, persistent_call
import shop
from shop import base
from shop.base import Params, cfg, make

NAME = "dense"
def direct(x):
    return importlib.import_module("shop.plugins." + NAME).Dense()(x)
def through(x):
    return base.load(NAME)(x)
def registry(x):
    base.load("wide")
    return shop.REGISTRY["wide"]()(x)
def inside(x):
    from shop.plugins import wide
    import shop.circle
    return wide.Wide()(shop.circle.go(x))
def relative(x):
    return base.relative("circle").go(x)
def itself(x):
    return x * base.me()
def dunder(x):
    return __import__("shop.circle").circle.go(x)
def tree(params, x):
    assert isinstance(params, Params)
    return base.scaled(params, x)
def closed(x, f=make(5.0)):
    return f(x)
def reads(x):
    return x * cfg.lr
def elsewhere(x):
    return importlib.import_module("no_such" + "_module").f(x)
def table(x):
    return sys.modules["shop"].base.circle.go(x)
def static(x, f):
    return f(x)
def marked(x, mark=base.MARK):
    return x * 3 if mark is base.MARK else x
def say(do):
    try:
        return float(do())
    except errors.JaxdError as error:
        return f"{type(error).__name__}: {error}"
ONE = np.float32(1)
"""


class Shop:
    """A folder with a package, from which each program runs in a fresh process."""

    def __init__(self, folder: Path, server: LiveServer) -> None:
        self.folder = folder
        self._server = server
        for name, text in PACKAGE.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replaces a piece of a file."""
        text = (self.folder / file).read_text()
        assert old in text
        (self.folder / file).write_text(text.replace(old, new))

    def run(self, program: str) -> Any:
        """What a program prints as JSON; it has the names of `MAIN`."""
        file = self.folder / "main.py"
        file.write_text(f"{MAIN}\n{program}\n")
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(file)],
            env=self._server.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def call(self, name: str, options: str = 'ship="source"', arguments: str = "ONE") -> Any:
        """What a call of one of the functions gives: a number, or an error's type and text."""
        call = f"persistent_call({name}, {options})({arguments})"
        return self.run(f"print(json.dumps(say(lambda: {call})))")


@pytest.fixture
def shop(live: LiveServer, tmp_path: Path) -> Shop:
    """A project that the server cannot import."""
    return Shop(tmp_path, live)


CALLS = {
    "direct": 3.0,
    "through": 3.0,
    "registry": 101.0,
    "inside": 102.0,
    "relative": 2.0,
    "itself": 2.0,
    "dunder": 2.0,
    "closed": 10.0,
    "reads": 3.0,
}


def test_computed_imports_registries_and_circles_run_on_the_server(shop: Shop) -> None:
    """Whatever way leads to a module of the package, it is there."""
    names = ", ".join(CALLS)
    program = f"""
found = {{f.__name__: say(lambda: persistent_call(f, ship="source")(ONE)) for f in ({names})}}
print(json.dumps(found))
"""
    assert shop.run(program) == CALLS


def test_a_function_in_a_package_goes_by_name(shop: Shop) -> None:
    """A persistent function there is the plain one on the server, for others there as well."""
    assert shop.run("from shop.trained import step\nprint(float(step(ONE)))") == 3.0


@pytest.mark.parametrize("name", ["total", "both"])
def test_a_function_in_a_package_pads_once(name: str, shop: Shop) -> None:
    """Where it is called, from here or there."""
    program = f"from shop.trained import {name} as f\nprint(float(f(np.ones(3, np.float32))))"
    assert shop.run(program) == 403.0


def test_a_bare_object_of_the_package_is_the_one_that_it_is_or_refused(shop: Shop) -> None:
    """As a default it is that of the archive; as an argument it has no name there."""
    options = 'ship="source", static_argnames="mark"'
    assert shop.call("marked", options) == 3.0
    refusal = shop.call("marked", options, "ONE, mark=base.MARK")
    assert "PackingError" in refusal
    assert "bare object()" in refusal


def test_arguments_and_results_are_of_the_classes_of_the_package(shop: Shop) -> None:
    """The same class on the server for code and arguments, and the caller's own here."""
    program = """
params = persistent_call(tree, ship="source")(Params(np.float32(3)), ONE)
print(json.dumps([type(params) is Params, float(params.w)]))
"""
    assert shop.run(program) == [True, 6.0]


def test_a_class_of_the_program_that_derives_from_the_package_comes_home(shop: Shop) -> None:
    """It goes by value, and its base is that of the archive."""
    program = """
import jax
from dataclasses import dataclass
@jax.tree_util.register_dataclass
@dataclass
class Mine(Params):
    b: jax.Array
def extends(mine):
    assert isinstance(mine, Params) and isinstance(mine, Mine)
    return Mine(mine.w * base.RATE, mine.b)
extended = persistent_call(extends, ship="source")(Mine(np.float32(3), np.float32(4)))
print(json.dumps([type(extended) is Mine, float(extended.w), float(extended.b)]))
"""
    assert shop.run(program) == [True, 6.0, 4.0]


def test_a_closure_of_the_package_as_an_argument(shop: Shop) -> None:
    """Its globals are those of the package."""
    options = 'ship="source", static_argnames="f"'
    assert shop.call("static", options, "ONE, f=make(4.0)") == 8.0


def test_by_value_and_as_source_do_not_mix_their_classes(shop: Shop) -> None:
    """One process may send a class both ways."""
    program = """
ways = [persistent_call(tree, ship=each) for each in ("value", "source", "value")]
print(json.dumps([float(way(Params(np.float32(3)), ONE).w) for way in ways]))
"""
    assert shop.run(program) == [6.0, 6.0, 6.0]


def test_a_static_argument_may_be_a_function_of_the_package(shop: Shop) -> None:
    """It is the function that the package's own modules have."""
    options = 'ship="source", static_argnames="f"'
    assert shop.call("static", options, "ONE, f=base.circle.go") == 2.0


def test_two_versions_of_a_package_live_side_by_side(shop: Shop) -> None:
    """Each caller gets the code that it has."""
    assert shop.call("through") == 3.0
    shop.edit("shop/base.py", "RATE = 2.0", "RATE = 7.0")
    assert shop.call("through") == 8.0
    shop.edit("shop/base.py", "RATE = 7.0", "RATE = 2.0")
    assert shop.call("through") == 3.0


def test_a_setting_that_was_changed_after_the_import_is_refused(shop: Shop) -> None:
    """The server would compute with what the source says."""
    call = "persistent_call(reads, ship='source')(ONE)"
    text = shop.run(f"cfg.lr = 9.0\nprint(json.dumps(say(lambda: {call})))")
    assert "shop.base.cfg.lr, which is 9.0 in this process and 3.0 on the server" in text


def test_a_function_that_was_replaced_is_refused(shop: Shop) -> None:
    """The server would call the original."""
    program = """
def mine(): return 0.0
base.me = mine
print(json.dumps(say(lambda: persistent_call(itself, ship='source')(ONE))))
"""
    assert "shop.base.me, which was replaced by mine of __main__" in shop.run(program)


def test_without_the_option_the_error_names_it(shop: Shop) -> None:
    """A computed import by value is refused before anything is sent."""
    text = shop.call("direct", "")
    assert text.startswith("PackingError: direct")
    assert "ship='source'" in text


def test_a_module_that_was_not_sent_is_named(shop: Shop) -> None:
    """A computed name of another package cannot be seen."""
    text = shop.call("elsewhere")
    assert "no module named 'no_such_module' came with this function" in text


def test_the_table_of_modules_stays_refused(shop: Shop) -> None:
    """`sys.modules` in code that goes by value is the server's own."""
    assert "uses sys.modules" in shop.call("table")


def test_the_server_has_no_module_of_that_name(client: Any, shop: Shop) -> None:
    """What a package does when it is run stays in it: the server's own table has no trace."""
    assert shop.call("through") == 3.0

    def known() -> Any:
        import sys

        import jax.numpy as jnp

        return jnp.asarray([name.startswith("shop") for name in sorted(sys.__dict__["modules"])])

    assert not client.persistent_call(known)().any()
