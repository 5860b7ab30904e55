"""What is installed counts by its distribution; what somebody patched into it, by value."""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

from pathlib import Path

import pytest

from tests.identity.probing import Job, ProbeResult, probe
from tests.identity.projects import INSTALLED, Edit, check, edit, needs, probe_edits, write

TOOLBOX = """
--- site-packages/toolbox/__init__.py
from functools import partial
from types import SimpleNamespace
from toolbox import parts
SCALE = 2
UNIT = "m"
def double(x): return x * SCALE
def triple(x): return x * 3
def scaled(x, by=1): return x * by
twice = partial(scaled, by=2)
policies = SimpleNamespace(all=double, none=triple)
TABLE = {"a": 1, "b": 2}
OPTIONS = []
class Settings: rate = 0.5
defaults = Settings()
class Box:
    def __init__(self, width): self.width = width
    def area(self): return self.width ** 2
--- site-packages/toolbox/parts.py
DEPTH = 5
def half(x): return x / 2
def third(x): return x / 3
--- site-packages/toolbox-1.0.dist-info/METADATA
Metadata-Version: 2.1
Name: toolbox
Version: 1.0
--- site-packages/toolbox-1.0.dist-info/top_level.txt
toolbox
--- site-packages/toolbox-1.0.dist-info/INSTALLER
pip
--- site-packages/toolbox-1.0.dist-info/RECORD
toolbox/__init__.py,sha256=oneone,200
toolbox/parts.py,sha256=twotwo,80
toolbox/__pycache__/parts.cpython-311.pyc,,
../../bin/toolbox,sha256=script,20
toolbox-1.0.dist-info/METADATA,sha256=metadata,60
toolbox-1.0.dist-info/RECORD,,
"""
USES = """
import functools, types
import toolbox
import toolbox.parts
from toolbox import Box, double
def mine(x): return x + 1
def sub(module, x): return module.third(x)
# here
def by_module(x): return toolbox.double(x)
def by_name(x): return double(x)
def by_class(x): return Box(x).area()
def by_entry(x): return toolbox.TABLE["a"]
def by_table(x): return len(toolbox.OPTIONS)
def by_partial(x): return toolbox.twice(x)
def by_namespace(x): return toolbox.policies.all(x)
def by_setting(x): return toolbox.Settings.rate
def by_object(x): return toolbox.defaults.rate
def by_submodule(x): return toolbox.parts.half(x)
def constant(x): return x * toolbox.SCALE
def deep_constant(x): return x * toolbox.parts.DEPTH
def lazily(x):
    from toolbox import double
    return double(x)
def lazy_module(x):
    import toolbox.parts
    return toolbox.parts.half(x)
def attribute(x): return box.width * x
def method(x): return box.area() * x
box = Box(3)
def other(x): return toolbox.triple(x)
"""
EVERY = (
    "by_module by_name by_class by_submodule by_partial by_namespace constant lazily lazy_module "
    "method other"
)
PROJECT = USES + TOOLBOX

CLOSURES = """
import toolbox
def mine(x): return x + 1
model = toolbox.Model()
# here
reads = toolbox.reading(model)
bound = toolbox.passing(model)
calls = toolbox.calling(model)
gives = toolbox.giving(model)
writes = toolbox.writing(model)
nested = toolbox.nesting(model)
looks = toolbox.looking(model)
deep = toolbox.reaching(model)
items = toolbox.picking({"used": 1, "unused": 2})
--- site-packages/toolbox/__init__.py
class Part:
    def __init__(self):
        self.size, self.other = 3, 4
    def twice(self): return self.size * 2
class Model:
    def __init__(self):
        self.width, self.depth, self.part, self.unread = 1, 2, Part(), 0
    def area(self): return self.width ** 2
def reading(self):
    def read(x): return x * self.width if self.depth is None else x
    return read
def passing(self):
    def given(x): return self.width * x, self.part.twice()
    return given
def calling(self):
    def called(x): return self.area() * x
    return called
def giving(self):
    def gave(x): return str(self), self.width * x
    return gave
def writing(self):
    def wrote(x):
        self.depth = x
        return self.width * x
    return wrote
def nesting(self):
    def outer(x):
        def inner(y): return self.width * y
        return inner(x)
    return outer
def looking(self):
    def looked(x): return vars()["self"].unread, self.width
    return looked
def reaching(self):
    def reached(x): return self.part.size * x
    return reached
def picking(table):
    def picked(x): return table["used"] * x
    return picked
"""
CLOSED = "reads bound calls gives writes nested looks"
METADATA = TOOLBOX[TOOLBOX.index("--- site-packages/toolbox-1.0.dist-info/METADATA") :]
CLOSURES += METADATA

ENVIRON = """
import os
from os import environ, getenv
os.environ["READ"] = "a"
os.environ["UNREAD"] = "b"
os.environ.pop("LATER", None)
# here
def item(x): return os.environ["READ"]
def get(x): return os.environ.get("READ")
def with_default(x): return os.environ.get("READ", "z")
def by_getenv(x): return os.getenv("READ")
def getenv_default(x): return os.getenv("READ", "z")
def imported(x): return environ["READ"]
def imported_get(x): return environ.get("READ", "1")
def imported_getenv(x): return getenv("READ")
def later(x): return os.environ.get("LATER", "none")
def is_set(x): return "LATER" in os.environ
def inside(x):
    import os
    return os.environ["READ"]
def inside_from(x):
    from os import environ
    return environ.get("READ")
def other(x): return os.path.join("a", "b")
"""
READS = (
    "item get with_default by_getenv getenv_default imported imported_get imported_getenv "
    "inside inside_from"
)

STANDARD = """
import math, json
import collections.abc
def mine(x): return 0
# here
def step(x): return math.sin(x)
def constant(x): return x * math.pi
def encoder(x): return json.dumps(x)
def other(x): return math.cos(x)
"""

ROWS = [
    edit("the version", PROJECT, "1.0", "1.1", EVERY, "mine"),
    edit("a file of the package", PROJECT, "oneone", "others", EVERY, "mine"),
    edit("a file beside the package", PROJECT, "=script", "=binary", "", f"{EVERY} mine"),
    edit("who installed it", PROJECT, "pip\n", "uv\n", "", f"{EVERY} mine"),
    edit("a compiled file", PROJECT, "parts.cpython-311.pyc,,", "parts.cpython-312.pyc,,", "", EVERY),
    edit("a function of one's own in it", PROJECT, "# here", "toolbox.double = mine", "by_module lazily", "by_class by_submodule constant other"),
    edit("another of its own functions", PROJECT, "# here", "toolbox.double = toolbox.triple", "by_module lazily", "by_class constant other"),
    edit("a function in its submodule", PROJECT, "# here", "toolbox.parts.half = mine", "by_submodule lazy_module", "by_module constant other"),
    edit("a patched function's body", USES.replace("# here", "toolbox.double = mine") + TOOLBOX, "x + 1", "x + 2", "by_module lazily mine", "by_name constant other"),
    edit("a constant of it", PROJECT, "# here", "toolbox.SCALE = 3", "constant", "deep_constant by_class other"),
    edit("a constant of its submodule", PROJECT, "# here", "toolbox.parts.DEPTH = 3", "deep_constant", "constant other by_module"),
    edit("an entry of its dict", PROJECT, "# here", "toolbox.TABLE['a'] = 3", "by_entry", "constant by_table by_class other"),
    edit("an item of its list", PROJECT, "# here", "toolbox.OPTIONS.append(3)", "by_table", "constant by_entry other"),
    edit("an attribute of its class", PROJECT, "# here", "toolbox.Settings.rate = 3", "by_setting by_object", "constant by_entry other"),
    edit("an attribute of its object", PROJECT, "# here", "toolbox.defaults.rate = 3", "by_object", "by_setting constant other"),
    edit("a class of one's own in it", PROJECT, "# here", "toolbox.Settings = type('S', (), {'rate': 9})", "by_setting", "constant other"),
    edit("a partial of it", PROJECT, "# here", "toolbox.twice = functools.partial(toolbox.scaled, by=3)", "by_partial", "by_namespace constant other"),
    edit("an argument of its partial", PROJECT, "# here", "toolbox.twice.keywords['by'] = 3", "by_partial", "by_namespace constant other"),
    edit("an equal partial", PROJECT, "# here", "toolbox.twice = functools.partial(toolbox.scaled, by=2)", "", "by_partial by_namespace other"),
    edit("a name in its namespace", PROJECT, "# here", "toolbox.policies.all = toolbox.triple", "by_namespace", "by_partial constant other"),
    edit("a function of one's own in its namespace", PROJECT, "# here", "toolbox.policies.all = mine", "by_namespace", "by_partial constant other"),
    edit("a namespace of it", PROJECT, "# here", "toolbox.policies = types.SimpleNamespace(all=toolbox.double)", "by_namespace", "by_partial constant other"),
    edit("an attribute that nothing reads", PROJECT, "# here", "toolbox.UNIT = 'km'", "", EVERY),
    edit("a new attribute that nothing reads", PROJECT, "# here", "toolbox.mine = mine", "", EVERY),
    edit("an instance of its class", PROJECT, "Box(3)", "Box(4)", "attribute method", "by_class other"),
    edit("a variable that is read", ENVIRON, '"a"\nos', '"b"\nos', READS, "later is_set other"),
    edit("a variable that is not read", ENVIRON, '["UNREAD"] = "b"', '["UNREAD"] = "c"', "", f"{READS} later is_set other"),
    edit("a variable that appears", ENVIRON, "# here", 'os.environ["LATER"] = "x"', "later is_set", f"{READS} other"),
    edit("a variable that disappears", ENVIRON, "# here", 'os.environ.pop("UNREAD")', "", f"{READS} later is_set other"),
    edit("a function of the standard library", STANDARD, "# here", "math.sin = mine", "step", "constant encoder other"),
    edit("one swapped for another", STANDARD, "# here", "math.sin = math.cos", "step", "constant encoder other"),
    edit("an attribute that its closure reads", CLOSURES, "# here", "model.width = 5", CLOSED, "deep items"),
    edit("another that it reads", CLOSURES, "# here", "model.depth = None", "reads calls gives writes looks", "bound nested deep items"),
    edit("an attribute that only some closures can reach", CLOSURES, "# here", "model.unread = 5", "calls gives writes looks", "reads bound nested deep items"),
    edit("a new attribute of what its closure holds", CLOSURES, "# here", "model.new = {id(model): 1}", "", "reads bound nested deep items"),
    edit("an attribute further away", CLOSURES, "# here", "model.part.size = 5", "deep bound calls gives writes looks", "reads nested items"),
    edit("one beside it", CLOSURES, "# here", "model.part.other = 5", "bound calls gives writes looks", "deep reads nested items"),
    edit("an item that its closure reads", CLOSURES, '"used": 1', '"used": 5', "items", CLOSED),
    edit("an item that it does not read", CLOSURES, '"unused": 2', '"unused": 5', "", f"items {CLOSED}"),
    edit("a method of one's own on what its closure holds", CLOSURES, "# here", "model.area = mine", "calls gives writes looks", "reads bound nested deep items"),
    edit("its constant", STANDARD, "# here", "math.pi = 3", "constant", "step encoder other"),
]  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """All rows, looked at from one interpreter."""
    return probe_edits(tmp_path_factory.mktemp("installed"), ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_what_is_installed_counts(
    row: Edit, seen: dict[str, tuple[ProbeResult, ProbeResult]]
) -> None:
    """By name, version and files; what was put into it counts by value."""
    check(row, seen)


PATCHED = {
    "a method": "toolbox.Box.area = lambda self: 0",
    "a function's code": "toolbox.double.__code__ = mine.__code__",
}


@pytest.mark.parametrize("says", PATCHED)
def test_what_is_patched_inside_is_refused_or_counts(tmp_path: Path, says: str) -> None:
    """The server's copy is not like that: it must not be taken for it."""
    row = edit(says, PROJECT, "# here", PATCHED[says], "by_module by_class")
    before, after = probe_edits(tmp_path, [row])[says]
    name = "by_class" if says == "a method" else "by_module"
    if "refused" in after[name]:
        assert "toolbox" in after[name]["refused"]
    else:
        assert before.digest(name) != after.digest(name)


FLAGS = """
from absl import flags
flags.DEFINE_float("lr", 0.5, "")
flags.DEFINE_string("run_name", "first", "")
FLAGS = flags.FLAGS
FLAGS(["main.py", "--lr=0.25"])
def step(x): return x * FLAGS.lr
def by_module(x): return x * flags.FLAGS.lr
def other(x): return x
"""
GIN = """
import gin
@gin.configurable
def scaled(x, by=1.0): return x * by
gin.parse_config("scaled.by = 2.0")
def step(x): return scaled(x)
def other(x): return x
"""


@pytest.mark.parametrize("name", ["step", "by_module"])
def test_a_flag_that_is_read_counts(tmp_path: Path, name: str) -> None:
    """The value that was parsed, not the one it was defined with."""
    needs("absl")
    row = edit("a flag", FLAGS, "lr=0.25", "lr=0.75", name, "other")
    check(row, probe_edits(tmp_path, [row], "absl.flags"))


def test_a_binding_of_gin_counts_or_is_refused(tmp_path: Path) -> None:
    """gin keeps bindings where no walk looks: what must not happen is one key for two of them."""
    needs("gin")
    row = edit("a binding", GIN, "by = 2.0", "by = 3.0", "step", "other")
    before, after = probe_edits(tmp_path, [row], "gin")[row.says]
    if "refused" in before["step"]:
        assert "gin" in before["step"]["refused"]
        assert "refused" in after["step"]
    else:
        check(row, {row.says: (before, after)})


def test_two_environments_with_the_same_packages_agree(tmp_path: Path) -> None:
    """Where they are installed does not matter."""
    names = tuple(EVERY.split())
    places = [write(tmp_path / name, PROJECT) for name in ("one", "a/longer/other")]
    elsewhere = tmp_path / "elsewhere" / "lib" / INSTALLED
    elsewhere.parent.mkdir(parents=True)
    (places[1] / INSTALLED).rename(elsewhere)
    paths = [places[0] / INSTALLED, elsewhere]
    jobs = [
        Job(str(place), names, path=[str(path)]) for place, path in zip(places, paths, strict=True)
    ]
    one, other = probe(jobs)
    assert one.digests() == other.digests()
