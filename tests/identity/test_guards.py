"""Guards detect that something has changed since the walk."""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import walk
from tests.identity.projects import write

SUBJECT = """
import collections, functools, math, os
from dataclasses import dataclass
from types import SimpleNamespace
import numpy as np
import guarded_helpers
import guarded_package.inner
from guarded_helpers import shift
RATE = 2
LIST, NEST = [1, [2]], {"a": [{"b": (3, [4])}]}
TABLE = {"lr": 0.5, "name": "first", "deep": {"width": 8}}
SET, QUEUE, BYTES = {1, 2}, collections.deque([1, 2]), bytearray(b"ab")
ORDERED, DEFAULTS = collections.OrderedDict(a=1, b=2), collections.defaultdict(list, a=[1])
ARRAY, OBJECTS = np.arange(6.0).reshape(2, 3), np.array([1, [2]], dtype=object)
FROZEN = np.arange(3.0)
FROZEN.flags.writeable = False
CONFIG = SimpleNamespace(lr=0.5, name="first", model=SimpleNamespace(width=8))
MEMO, COUNTS, SEEN = {}, {"calls": 0}, []
os.environ["GUARDED"] = "a"
class Meta(type):
    def made(cls): return 1
class Base(metaclass=Meta):
    unit = "m"
    def deep(self): return 1
class Elsewhere(metaclass=Meta):
    def deep(self): return 5
class Model(Base):
    width = 8
    def __init__(self, rate): self.rate, self.calls = rate, 0
    def run(self, x): return x * self.rate
    def counted(self, x):
        self.calls += 1
        return x * self.rate
    @property
    def double(self): return self.rate * 2
    @staticmethod
    def fixed(x): return x
class Twin(Base):
    width = 9
    def run(self, x): return x
class Reducing:
    def __init__(self, items): self.items, self.table = list(items), {"a": [1]}
    def __reduce__(self): return Reducing.made, (tuple(self.items), tuple(self.table["a"]))
    @staticmethod
    def made(items, more):
        made = Reducing(items)
        made.table["a"] = list(more)
        return made
class Slotted:
    __slots__ = ("a", "b")
    def __init__(self): self.a, self.b = 1, [2]
@dataclass
class Data:
    rate: float = 1.0
model, slotted, data = Model(3), Slotted(), Data()
HOLDER = SimpleNamespace(inside=[model])
def other(x): return x * 5
def helper(x): return x * RATE
def step(x, a=1, *, b=2): return helper(x) + a + b
def lists(x): return LIST
def nests(x): return NEST
def entry(x): return TABLE["lr"]
def deep_entry(x): return TABLE["deep"]["width"]
def missing_entry(x): return TABLE.get("late")
def whole_table(x): return dict(TABLE)
def sets(x): return SET
def queues(x): return QUEUE, BYTES
def ordered(x): return ORDERED, DEFAULTS
def arrays(x): return x * ARRAY
def frozen(x): return x * FROZEN
def objects(x): return OBJECTS
def config(x): return x * CONFIG.lr
def deep_config(x): return CONFIG.model.width
def whole_config(x): return vars(CONFIG)
def uses_class(x): return Model(x)
def uses_instance(x): return [model]
def uses_holder(x): return HOLDER
reducing = Reducing([1, 2])
def uses_reducing(x): return [reducing]
def uses_slots(x): return [slotted]
def uses_data(x): return [data]
bound, counted = model.run, model.counted
def by_module(x): return guarded_helpers.scale(x)
def by_constant(x): return guarded_helpers.FACTOR
def by_package(x): return guarded_package.inner.deep(x)
def by_import(x): return shift(x)
def lazy(x):
    from guarded_helpers import scale
    return scale(x)
def lazy_unloaded(x):
    import guarded_unloaded
    return guarded_unloaded.value(x)
def builtin(x): return abs(x)
def appears(x): return LATER if x else 0
def installed(x): return math.sin(x)
def environment(x): return os.environ["GUARDED"]
def make(rate, state):
    def run(x): return x * rate, state
    return run
closed = make(3, [4])
partial = functools.partial(other, x=[1])
labelled = functools.partial(other, 3)
labelled.unit = 2
def uses_partial(x): return [labelled]
class OwnPartial(functools.partial): pass
class OwnDefaults(collections.defaultdict): pass
class Forwarding(collections.defaultdict):
    def __getattr__(self, name): raise AttributeError(name)
class Defaults:
    table = collections.defaultdict(list)
own_partial, OWN_DEFAULTS = OwnPartial(other, 3), OwnDefaults(list)
FORWARDING = Forwarding(list)
def uses_own(x): return own_partial, OWN_DEFAULTS, FORWARDING
def uses_defaults(x): return [Defaults]
@functools.wraps(other)
def attributed(x): return x
def memoises(x):
    if x not in MEMO: MEMO[x] = x * 2
    return MEMO[x]
def counts(x):
    COUNTS["calls"] += 1
    SEEN.append(x)
    return x
@functools.lru_cache
def cached(x): return x
def caches(x): return cached(x)
--- guarded_helpers.py
FACTOR, UNREAD = 3, 4
def scale(x): return x * FACTOR
def shift(x): return scale(x) + 1
--- guarded_unloaded.py
def value(x): return x
--- guarded_package/__init__.py
--- guarded_package/inner.py
def deep(x): return x
"""
MODULES = ("main", "guarded_helpers", "guarded_unloaded", "guarded_package")


class Change(NamedTuple):
    """Something that a program does to what a function reaches, and how it is undone."""

    says: str
    of: str
    do: str
    undo: str


CHANGES = [
    Change("its code", "step", "old = m.step.__code__; m.step.__code__ = (lambda x, a=1, *, b=2: 0).__code__", "m.step.__code__ = old"),
    Change("a helper's code", "step", "old = m.helper.__code__; m.helper.__code__ = m.other.__code__", "m.helper.__code__ = old"),
    Change("a helper", "step", "old = m.helper; m.helper = m.other", "m.helper = old"),
    Change("its defaults", "step", "m.step.__defaults__ = (7,)", "m.step.__defaults__ = (1,)"),
    Change("its keyword defaults", "step", "m.step.__kwdefaults__ = {'b': 7}", "m.step.__kwdefaults__ = {'b': 2}"),
    Change("its keyword defaults in place", "step", "m.step.__kwdefaults__['b'] = 7", "m.step.__kwdefaults__['b'] = 2"),
    Change("an attribute of it", "step", "m.step.unit = 1", "del m.step.unit"),
    Change("a cell", "closed", "m.closed.__closure__[0].cell_contents = 5", "m.closed.__closure__[0].cell_contents = 3"),
    Change("what a cell holds", "closed", "m.closed.__closure__[1].cell_contents.append(1)", "m.closed.__closure__[1].cell_contents.pop()"),
    Change("a cell that is emptied", "closed", "del m.closed.__closure__[0].cell_contents", "m.closed.__closure__[0].cell_contents = 3"),
    Change("a global", "step", "m.RATE = 3", "m.RATE = 2"),
    Change("a global that disappears", "step", "del m.RATE", "m.RATE = 2"),
    Change("a global that appears", "appears", "m.LATER = 1", "del m.LATER"),
    Change("a builtin that is shadowed", "builtin", "m.abs = m.other", "del m.abs"),
    Change("a function in a module", "by_module", "old = m.guarded_helpers.scale; m.guarded_helpers.scale = m.other", "m.guarded_helpers.scale = old"),
    Change("a constant in a module", "by_constant", "m.guarded_helpers.FACTOR = 9", "m.guarded_helpers.FACTOR = 3"),
    Change("a global of a module's function", "by_import", "m.guarded_helpers.FACTOR = 9", "m.guarded_helpers.FACTOR = 3"),
    Change("a function in a package", "by_package", "old = m.guarded_package.inner.deep; m.guarded_package.inner.deep = m.other", "m.guarded_package.inner.deep = old"),
    Change("a submodule", "by_package", "old = m.guarded_package.inner; m.guarded_package.inner = m.guarded_helpers; m.guarded_helpers.deep = m.other", "m.guarded_package.inner = old; del m.guarded_helpers.deep"),
    Change("what a later import finds", "lazy", "old = m.guarded_helpers.scale; m.guarded_helpers.scale = m.other", "m.guarded_helpers.scale = old"),
    Change("which module a later import finds", "lazy", "import sys, types; t = types.ModuleType('guarded_helpers'); t.scale = m.other; sys.modules['guarded_helpers'] = t", "sys.modules['guarded_helpers'] = m.guarded_helpers"),
    Change("a method", "uses_class", "old = m.Model.run; m.Model.run = m.Twin.run", "m.Model.run = old"),
    Change("a method of a bound instance", "bound", "old = m.Model.run.__code__; m.Model.run.__code__ = m.Twin.run.__code__", "m.Model.run.__code__ = old"),
    Change("an attribute of a class", "uses_class", "m.Model.width = 1", "m.Model.width = 8"),
    Change("an attribute of a base", "uses_class", "m.Base.unit = 'km'", "m.Base.unit = 'm'"),
    Change("a class's attribute that appears", "uses_class", "m.Model.late = 1", "del m.Model.late"),
    Change("a method of a base", "uses_class", "m.Base.deep.__defaults__ = (1,)", "m.Base.deep.__defaults__ = None"),
    Change("a property", "uses_class", "old = m.Model.double; m.Model.double = property(lambda self: 1)", "m.Model.double = old"),
    Change("a static method", "uses_class", "old = vars(m.Model)['fixed']; m.Model.fixed = staticmethod(m.other)", "m.Model.fixed = old"),
    Change("a list of which __reduce__ makes a tuple", "uses_reducing", "m.reducing.items[0] = 9", "m.reducing.items[0] = 1"),
    Change("a list in a dict of such an object", "uses_reducing", "m.reducing.table['a'].append(9)", "m.reducing.table['a'].pop()"),
    Change("the bases", "uses_class", "m.Model.__bases__ = (m.Elsewhere,)", "m.Model.__bases__ = (m.Base,)"),
    Change("the metaclass's method", "uses_class", "old = m.Meta.made.__code__; m.Meta.made.__code__ = (lambda cls: 3).__code__", "m.Meta.made.__code__ = old"),
    Change("an item of a list", "lists", "m.LIST[0] = 9", "m.LIST[0] = 1"),
    Change("one more in a list", "lists", "m.LIST.append(9)", "m.LIST.pop()"),
    Change("a list in a list", "lists", "m.LIST[1].append(9)", "m.LIST[1].pop()"),
    Change("deep in a nest", "nests", "m.NEST['a'][0]['b'][1].append(9)", "m.NEST['a'][0]['b'][1].pop()"),
    Change("deep in a nest, replaced", "nests", "m.NEST['a'][0]['b'] = 5", "m.NEST['a'][0]['b'] = (3, [4])"),
    Change("an entry that is read", "entry", "m.TABLE['lr'] = 0.7", "m.TABLE['lr'] = 0.5"),
    Change("an entry that is deleted", "entry", "old = dict(m.TABLE); del m.TABLE['lr']", "m.TABLE.clear(); m.TABLE.update(old)"),
    Change("an entry in an entry", "deep_entry", "m.TABLE['deep']['width'] = 1", "m.TABLE['deep']['width'] = 8"),
    Change("an entry replaced above", "deep_entry", "old = m.TABLE['deep']; m.TABLE['deep'] = {'width': 1}", "m.TABLE['deep'] = old"),
    Change("an entry that appears", "missing_entry", "m.TABLE['late'] = 1", "del m.TABLE['late']"),
    Change("any entry of a whole dict", "whole_table", "m.TABLE['name'] = 'x'", "m.TABLE['name'] = 'first'"),
    Change("the order of a dict", "whole_table", "m.TABLE['lr'] = m.TABLE.pop('lr')", "old = dict(m.TABLE); m.TABLE.clear(); m.TABLE.update({k: old[k] for k in ('lr', 'name', 'deep')})"),
    Change("an element of a set", "sets", "m.SET.add(3)", "m.SET.discard(3)"),
    Change("an element that is equal to another", "sets", "m.SET.discard(1); m.SET.add(1.0)", "m.SET.discard(1); m.SET.add(1)"),
    Change("a deque", "queues", "m.QUEUE.append(3)", "m.QUEUE.pop()"),
    Change("bytes in place", "queues", "m.BYTES[0] = 99", "m.BYTES[0] = 97"),
    Change("an ordered dict's order", "ordered", "m.ORDERED.move_to_end('a')", "m.ORDERED.move_to_end('b')"),
    Change("a list in a defaultdict", "ordered", "m.DEFAULTS['a'].append(2)", "m.DEFAULTS['a'].pop()"),
    Change("what a defaultdict makes", "ordered", "m.DEFAULTS.default_factory = m.other", "m.DEFAULTS.default_factory = list"),
    Change("what a defaultdict of one's own makes", "uses_own", "m.OWN_DEFAULTS.default_factory = m.other", "m.OWN_DEFAULTS.default_factory = list"),
    Change("what a defaultdict in a class makes", "uses_defaults", "m.Defaults.table.default_factory = m.other", "m.Defaults.table.default_factory = list"),
    Change("what a defaultdict that answers for its attributes makes", "uses_own", "m.FORWARDING.default_factory = m.other", "m.FORWARDING.default_factory = list"),
    Change("an array in place", "arrays", "m.ARRAY[1, 2] = 9", "m.ARRAY[1, 2] = 5"),
    Change("an array through a view", "arrays", "m.ARRAY.ravel()[:] *= 2", "m.ARRAY[...] /= 2"),
    Change("a read-only array, made writeable for a moment", "frozen", "m.FROZEN.flags.writeable = True; m.FROZEN[0] = 9; m.FROZEN.flags.writeable = False", "m.FROZEN.flags.writeable = True; m.FROZEN[0] = 0; m.FROZEN.flags.writeable = False"),
    Change("an array's shape", "arrays", "m.ARRAY = m.ARRAY.reshape(3, 2)", "m.ARRAY = m.ARRAY.reshape(2, 3)"),
    Change("an array's shape in place", "arrays", "m.ARRAY.resize((3, 2), refcheck=False)", "m.ARRAY.resize((2, 3), refcheck=False)"),
    Change("an object in an array", "objects", "m.OBJECTS[1].append(3)", "m.OBJECTS[1].pop()"),
    Change("an attribute that is read", "config", "m.CONFIG.lr = 0.7", "m.CONFIG.lr = 0.5"),
    Change("an attribute of an attribute", "deep_config", "m.CONFIG.model.width = 9", "m.CONFIG.model.width = 8"),
    Change("an attribute replaced above", "deep_config", "old = m.CONFIG.model; m.CONFIG.model = type(old)(width=1)", "m.CONFIG.model = old"),
    Change("any attribute of a whole object", "whole_config", "m.CONFIG.name = 'x'", "m.CONFIG.name = 'first'"),
    Change("an attribute of an instance", "uses_instance", "m.model.rate = 5", "m.model.rate = 3"),
    Change("an instance's attribute that appears", "uses_instance", "m.model.late = 5", "del m.model.late"),
    Change("an instance's dict", "uses_instance", "old = m.model.__dict__; m.model.__dict__ = dict(old, rate=9)", "m.model.__dict__ = old"),
    Change("an instance's class", "uses_instance", "m.model.__class__ = m.Twin", "m.model.__class__ = m.Model"),
    Change("the class of an instance within", "uses_holder", "m.model.__class__ = m.Twin", "m.model.__class__ = m.Model"),
    Change("how attributes of a bound instance are found", "bound", "m.Base.__getattribute__ = lambda self, name: object.__getattribute__(self, name)", "del m.Base.__getattribute__"),
    Change("the state of a bound instance", "bound", "m.model.rate = 5", "m.model.rate = 3"),
    Change("a slot", "uses_slots", "m.slotted.a = 5", "m.slotted.a = 1"),
    Change("what a slot holds", "uses_slots", "m.slotted.b.append(1)", "m.slotted.b.pop()"),
    Change("a field of a dataclass", "uses_data", "m.data.rate = 5", "m.data.rate = 1.0"),
    Change("an argument of a partial", "partial", "m.partial.keywords['x'].append(2)", "m.partial.keywords['x'].pop()"),
    Change("a partial's first attribute", "partial", "m.partial.unit = 1", "del m.partial.unit"),
    Change("an attribute of a partial", "uses_partial", "m.labelled.unit = 1", "m.labelled.unit = 2"),
    Change("the attributes of a partial", "uses_partial", "old = m.labelled.__dict__; m.labelled.__dict__ = {'unit': 1}", "m.labelled.__dict__ = old"),
    Change("what a partial calls", "partial", "m.partial.__setstate__((m.helper, m.partial.args, m.partial.keywords, m.partial.__dict__))", "m.partial.__setstate__((m.other, m.partial.args, m.partial.keywords, m.partial.__dict__))"),
    Change("the arguments of a partial", "uses_partial", "m.labelled.__setstate__((m.other, (4,), {}, m.labelled.__dict__))", "m.labelled.__setstate__((m.other, (3,), {}, m.labelled.__dict__))"),
    Change("the keywords of a partial", "uses_partial", "m.labelled.__setstate__((m.other, m.labelled.args, {'y': 1}, m.labelled.__dict__))", "m.labelled.__setstate__((m.other, m.labelled.args, {}, m.labelled.__dict__))"),
    Change("what a partial of one's own calls", "uses_own", "m.own_partial.__setstate__((m.helper, m.own_partial.args, m.own_partial.keywords, m.own_partial.__dict__))", "m.own_partial.__setstate__((m.other, m.own_partial.args, m.own_partial.keywords, m.own_partial.__dict__))"),
    Change("an installed function", "installed", "old = m.math.sin; m.math.sin = m.other", "m.math.sin = old"),
    Change("a variable of the environment", "environment", "m.os.environ['GUARDED'] = 'b'", "m.os.environ['GUARDED'] = 'a'"),
]  # fmt: skip

HARMLESS = [
    Change("an attribute that is not read", "config", "m.CONFIG.name = 'x'", ""),
    Change("an entry that is not read", "entry", "m.TABLE['name'] = 'x'", ""),
    Change("a module's constant that is not read", "by_module", "m.guarded_helpers.UNREAD = 9", ""),
    Change("a global that is not read", "step", "m.UNREAD = 9", ""),
    Change("an attribute of a bound instance that is not read", "bound", "m.model.calls = 9", ""),
    Change("another variable of the environment", "environment", "m.os.environ['OTHER'] = 'b'", ""),
    Change("calls that fill its own memo", "memoises", "[m.memoises(n) for n in range(9)]", ""),
    Change("calls that it counts itself", "counts", "[m.counts(n) for n in range(9)]", ""),
    Change("calls that its own object counts", "counted", "[m.counted(n) for n in range(9)]", ""),
    Change("calls of a cached function", "caches", "[m.caches(n) for n in range(9)]", ""),
    Change("many calls", "step", "[m.step(n) for n in range(2000)]", ""),
    Change("its docstring", "step", "m.step.__doc__ = 'other'", ""),
    Change("its annotations", "step", "m.step.__annotations__['x'] = int", ""),
    Change("an instance's dict that is an equal one of its own", "step", "m.model.__dict__ = dict(vars(m.model))", ""),
]  # fmt: skip

EQUAL = [
    Change("a number", "step", "m.RATE = 2", ""),
    Change("a function", "step", "m.helper = type(m.helper)(m.helper.__code__, vars(m), 'helper')", ""),
    Change("a list", "lists", "m.LIST = [1, [2]]", ""),
    Change("a dict", "whole_table", "m.TABLE = {'lr': 0.5, 'name': 'first', 'deep': {'width': 8}}", ""),
    Change("an array", "arrays", "m.ARRAY = m.ARRAY.copy()", ""),
    Change("an array written with what it holds", "arrays", "m.ARRAY[...] = m.ARRAY + 0", ""),
    Change("an object", "config", "m.CONFIG = type(m.CONFIG)(lr=0.5, name='x')", ""),
    Change("an instance", "uses_instance", "m.model = m.Model(3)", ""),
    Change("a method", "uses_class", "f = m.Model.run; m.Model.run = type(f)(f.__code__, vars(m), 'run')", ""),
]  # fmt: skip


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The project, imported here and gone afterwards."""
    monkeypatch.setenv("GUARDED", "")
    monkeypatch.syspath_prepend(write(tmp_path / "project", SUBJECT))
    before = {name: sys.modules.pop(name, None) for name in MODULES}
    yield importlib.import_module("main")
    for name in [name for name in sys.modules if name.partition(".")[0] in MODULES]:
        del sys.modules[name]
    sys.modules.update({name: module for name, module in before.items() if module is not None})


def _digest(module: ModuleType, name: str) -> bytes:
    return walk(getattr(module, name), name).fingerprint.digest


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.says)
def test_a_change_is_noticed_and_can_be_undone(subject: ModuleType, change: Change) -> None:
    """The guards fail, another walk has another digest; undone, the first one again."""
    first = walk(getattr(subject, change.of), change.of)
    assert first.guards.hold()
    names: dict[str, Any] = {"m": subject}
    exec(change.do, names)
    try:
        noticed, changed = not first.guards.hold(), _digest(subject, change.of)
    finally:
        exec(change.undo, names)
    assert noticed
    assert changed != first.fingerprint.digest
    again = walk(getattr(subject, change.of), change.of)
    assert again.fingerprint.digest == first.fingerprint.digest
    assert again.guards.hold()


@pytest.mark.parametrize("change", HARMLESS, ids=lambda change: change.says)
def test_what_is_not_read_is_not_guarded(subject: ModuleType, change: Change) -> None:
    """Otherwise every call would walk again."""
    guards = walk(getattr(subject, change.of), change.of).guards
    exec(change.do, {"m": subject})
    assert guards.hold()


@pytest.mark.parametrize("change", EQUAL, ids=lambda change: change.says)
def test_an_equal_value_keeps_the_key(subject: ModuleType, change: Change) -> None:
    """Whether the guards look again or not."""
    first = walk(getattr(subject, change.of), change.of)
    exec(change.do, {"m": subject})
    assert _digest(subject, change.of) == first.fingerprint.digest


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("appears", "LATER = 1"),
        ("appears", "LATER = staticmethod(len)"),
        ("builtin", "abs = m.other"),
        ("builtin", "abs = m.np.abs"),
        ("builtin", "abs = round"),
    ],
)
def test_what_is_put_into_builtins_is_noticed_and_refused(
    subject: ModuleType, name: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server has only Python's own."""
    before = walk(getattr(subject, name), name)
    assert before.guards.hold()
    names: dict[str, Any] = {"m": subject}
    exec(change, names)
    added = change.partition(" ")[0]
    monkeypatch.setattr(builtins, added, names[added], raising=False)
    assert not before.guards.hold()
    with pytest.raises(PackingError, match=f"uses {added} .* added to Python's builtins"):
        walk(getattr(subject, name), name)
    monkeypatch.undo()
    assert before.guards.hold()


class OwnModule(ModuleType):
    """One whose class has attributes."""

    kind = 3
    own = 4

    @property
    def rate(self) -> float:
        """Computed when it is read."""
        return 2.0


class Answering(ModuleType):
    """One that makes what it does not have."""

    def __getattr__(self, name: str) -> Any:
        return 5


READS = """
def plain(x): return x * own_module.own
def by_class(x): return x * getattr(own_module, "kind", 1)
def computed(x): return x * getattr(own_module, "rate", 1)
def whole(x): return [own_module]
"""


@pytest.mark.parametrize(
    ("cls", "name", "is_refused"),
    [
        *(
            (OwnModule, name, name != "plain")
            for name in ("plain", "by_class", "computed", "whole")
        ),
        *((Answering, name, name != "plain") for name in ("plain", "by_class", "whole")),
        *((ModuleType, name, False) for name in ("plain", "by_class", "computed", "whole")),
    ],
)
def test_what_the_class_of_a_module_answers_is_refused(
    cls: type[ModuleType], name: str, is_refused: bool, subject: ModuleType
) -> None:
    """A server has modules of Python's own class: such an attribute would not be there."""
    module = cls("guarded_own")
    vars(module)["own"] = 1
    vars(subject)["own_module"] = module
    exec(READS, vars(subject))
    if not is_refused:
        assert _digest(subject, name)
        return
    with pytest.raises(PackingError, match=f"guarded_own, whose class {cls.__name__} has"):
        walk(getattr(subject, name), name)


def test_a_module_that_is_loaded_later_is_noticed(subject: ModuleType) -> None:
    """Its source counted until now; from now on what it holds does."""
    guards = walk(subject.lazy_unloaded, "lazy_unloaded").guards
    assert guards.hold()
    assert subject.lazy_unloaded(3) == 3
    assert not guards.hold()
