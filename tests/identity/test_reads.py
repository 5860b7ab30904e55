"""No more than what is read of a configuration is in the key, and never less."""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

import pytest

from tests.identity.probing import ProbeResult
from tests.identity.projects import Edit, check, edit, probe_edits

KINDS = {
    "a namespace of argparse": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", default=0.5)
parser.add_argument("--run-name", default="first")
args = parser.parse_args([])
""",
    "a simple namespace": """
from types import SimpleNamespace
args = SimpleNamespace(lr=0.5, run_name="first")
""",
    "a dataclass": """
from dataclasses import dataclass
@dataclass
class Config:
    lr: float
    run_name: str
args = Config(0.5, "first")
""",
    "a frozen dataclass with slots": """
from dataclasses import dataclass
@dataclass(frozen=True, slots=True)
class Config:
    lr: float
    run_name: str
args = Config(0.5, "first")
""",
    "a class that is never instantiated": """
class args:
    lr = 0.5
    run_name = "first"
""",
    "a class of one's own": """
class Config:
    def __init__(self, lr, run_name):
        self.lr = lr
        self.run_name = run_name
args = Config(0.5, "first")
""",
}
USES = """
import functools
def use(config): return config.lr
def keep(config): return [config]
def deeper(x, *, config): return use(config) * x
def step(x): return x * args.lr
def twice(x):
    def inner(y): return y * args.lr
    return [inner(x) for _ in range(3) if args.lr]
def make(config):
    def run(x): return x * config.lr
    return run
closed = make(args)
def passed(x): return x * use(args)
def passed_on(x): return deeper(x, config=args)
def kept(x): return x * keep(args)[0].lr
def named(x): return getattr(args, "lr"), getattr(args, "lr", 0)
def stored(x):
    kept = [args]
    return kept[0].lr
def looked_up(x, name="lr"): return getattr(args, name)
def as_dict(x): return vars(args) if hasattr(args, "__dict__") else repr(args)
def default(x, config=args): return use(config)
def by_word(x, *, config=args): return x * config.lr
def given(x, config=args): return [config][0].lr * x
def scaled(config, x): return x * config.lr
def hoarded(config, x): return [config][0].lr * x
bound, bound_by_word = functools.partial(scaled, args), functools.partial(deeper, config=args)
bound_whole = functools.partial(hoarded, args)
def holds(x): return bound.args[0].lr
def chosen(x): return (args if x else None).lr
def renamed(x):
    config = args
    return use(config)
"""
PARTS = "step twice closed passed passed_on named renamed default by_word bound bound_by_word"
WHOLES = "kept stored looked_up as_dict given bound_whole holds"

CLASS = """
class Trainer:
    decay = 0.9
    def __init__(self):
        self.lr = 0.5
        self.step_count = 0
        self.seed = 3
        self.model = Inner()
    @property
    def rate(self): return self.lr * self.decay
    def run(self, x): return x * self.lr
    def calls(self, x): return self.run(x) + 1
    def by_property(self, x): return x * self.rate
    def inside(self, x): return [self.lr * y for y in (x, x)]
    def nested(self, x): return self.model.width * x
    def passes(self, x): return use(self) * x
    def gives(self, x): return give(self)[0] * x
class Inner:
    def __init__(self):
        self.width = 8
        self.name = "inner"
class Child(Trainer):
    def run(self, x): return super().run(x) - 1
def use(trainer): return trainer.lr
def give(trainer): return [trainer.lr, trainer]
trainer, child = Trainer(), Child()
run, calls, by_property, inside = trainer.run, trainer.calls, trainer.by_property, trainer.inside
nested, passes, gives, by_super = trainer.nested, trainer.passes, trainer.gives, child.run
# here
"""

TABLE = """
CONFIG = {"lr": 0.5, "run_name": "first", "model": {"width": 8, "name": "inner"}, 3: "three"}
class Falling(dict):
    def __missing__(self, key): return key * 2
FALLING = Falling(a=1)
def use(config): return config["lr"]
def step(x): return x * CONFIG["lr"]
def nested(x): return x * CONFIG["model"]["width"]
def by_number(x): return CONFIG[3]
def absent(x):
    try: return CONFIG["late"]
    except KeyError: return x
def asked(x): return CONFIG.get("late", x)
def give(config): return [config, config["lr"]]
def passed(x): return use(CONFIG)
def kept(x): return give(CONFIG)
def named(x):
    config = CONFIG["model"]
    return config["width"]
def loops(x): return [key for key in CONFIG]
def counts(x): return len(CONFIG)
def contains(x): return "late" in CONFIG
def contains_not(x): return x if "late" not in CONFIG else CONFIG["model"]["width"]
def unpacks(x): return {**CONFIG}
def values(x): return list(CONFIG.values())
def by_key(x, key="run_name"): return CONFIG[key]
def falls(x): return FALLING["b"]
# here
"""
WHOLE_TABLE = "kept loops unpacks values by_key"

COMPUTED = """
import functools
class Config:
    def __init__(self): self.values = {"lr": 0.5, "run_name": "first"}
    def __getattr__(self, name):
        try: return self.__dict__["values"][name]
        except KeyError: raise AttributeError(name) from None
class Remembers:
    unit = "m"
    def __init__(self): self.lr, self.hidden = 1, 5
    def __getattribute__(self, name):
        if name == "lr": return object.__getattribute__(self, "hidden")
        return object.__getattribute__(self, name)
class Derived:
    base = 7
    def __init__(self): self.rate, self.run_name = 2, "first"
    lr = property(lambda self: self.rate * self.base)
    def method(self): return self.rate
class Caches:
    def __init__(self): self.lr = 0.3
    @functools.cached_property
    def doubled(self): return self.lr * 2
caches = Caches()
config, remembers, derived = Config(), Remembers(), Derived()
def step(x): return x * config.lr
def intercepted(x): return x * remembers.lr
def by_property(x): return x * derived.lr
def by_method(x): return x * derived.method()
def by_class(x): return x * derived.base
def by_cache(x): return x * caches.doubled
def absent(x): return getattr(derived, "late", 0)
def tries(x):
    try: return derived.late
    except AttributeError: return x
# here
"""

FLOW = """
from types import SimpleNamespace
args = SimpleNamespace(lr=0.5, other=0.25, model=SimpleNamespace(width=8, name="inner"))
spare = SimpleNamespace(lr=4)
class Trainer:
    def __init__(self, config): self.config = config
    def run(self, x): return x * self.config.lr
run = Trainer(args).run
def ternary(x): return (args if x else spare).lr
def either(x): return (args or spare).lr
def branch(x):
    if x: config = args
    else: config = spare
    return config.lr
def loop(x):
    for config in (spare, args): x = x * config.lr
    return x
def matches(x):
    match args:
        case SimpleNamespace(lr=rate): return rate
def walrus(x): return (config := args).lr * config.lr
def formatted(x): return f"{args.lr}"
def deep(x): return args.model.width
def deep_closure(x): return (lambda: args.model.width * x)()
def opened(x): return vars(args.model)
def writes(x):
    args.count = x
    return args.lr
def starred(x): return dict(**vars(args))
def default(x, rate=args.lr): return x * rate
def generator(x): yield from (args.lr for _ in range(2))
def by_dict(x): return args.__dict__["lr"]
def by_kind(x): return args.__class__, args.lr
def caught(x):
    try: return 1 / x + args.lr
    except ZeroDivisionError: return args.lr
def shadowed(x): return [args.lr for args in (spare, args)] if x else (lambda args: args.lr)(args)
def conditional(x): return args.lr if x else args.other
def chained(x): return 0 < args.lr < x
def items(x):
    rates = {"a": args.lr}
    return rates["a"]
async def later(x): return args.lr
def global_again(x):
    global fresh
    fresh = args
    return fresh.lr
# here
"""
LR = (
    "run ternary either branch loop matches walrus formatted writes starred default generator "
    "later global_again by_dict by_kind caught shadowed conditional chained items"
)

ROWS = [
    row
    for kind, source in KINDS.items()
    for row in (
        edit(f"{kind}: unread", source + USES, '"first"', '"second"', WHOLES, PARTS),
        edit(f"{kind}: read", source + USES, "0.5", "0.7", f"{PARTS} {WHOLES} chosen"),
        edit(f"{kind}: a helper that it is passed to", source + USES, "return config.lr", "return config.run_name", "passed passed_on renamed default bound_by_word", "step named kept by_word bound"),
    )
] + [
    edit("self: a counter that is not read", CLASS, "# here", "trainer.step_count = 1", "gives", "passes run calls by_property inside nested by_super"),
    edit("self: what is read", CLASS, "# here", "trainer.lr = child.lr = 0.7", "run calls by_property inside passes gives by_super", "nested"),
    edit("self: an attribute of an attribute", CLASS, "# here", "trainer.model.width = 9", "nested gives", "passes run inside"),
    edit("self: what is not read of an attribute", CLASS, "# here", "trainer.model.name = 'outer'", "gives", "passes run nested"),
    edit("self: what a property reads", CLASS, "decay = 0.9", "decay = 0.8", "by_property"),
    edit("self: one that hides the class's", CLASS, "# here", "trainer.decay = 0.1", "by_property gives", "passes run"),
    edit("self: a method that hides the class's", CLASS, "# here", "trainer.run = lambda x: 0", "calls gives", "passes inside"),
    edit("self: a method that the class gets", CLASS, "# here", "Child.calls = lambda self, x: 0", "by_super", "run"),
    edit("dict: an unread entry", TABLE, '"first"', '"second"', WHOLE_TABLE, "step nested named passed by_number absent asked contains contains_not"),
    edit("dict: a read entry", TABLE, "0.5", "0.7", "step passed kept unpacks values", "nested named by_number absent"),
    edit("dict: an entry in an entry", TABLE, '"width": 8', '"width": 9', "nested named kept values", "passed step"),
    edit("dict: an unread entry in an entry", TABLE, '"inner"', '"outer"', "kept values", "passed step nested named"),
    edit("dict: by number", TABLE, '"three"', '"four"', "by_number", "step nested"),
    edit("dict: an entry that appears", TABLE, "# here", 'CONFIG["late"] = 1', "absent asked loops counts contains contains_not", "step nested"),
    edit("dict: what fills gaps", TABLE, "key * 2", "key * 3", "falls", "step"),
    edit("dict: the order of entries", TABLE, '"lr": 0.5, "run_name": "first"', '"run_name": "first", "lr": 0.5', "loops values unpacks", "step nested"),
    edit("computed: by __getattr__", COMPUTED, "0.5", "0.7", "step", "by_property"),
    edit("computed: by __getattribute__", COMPUTED, "self.hidden = 1, 5", "self.hidden = 1, 6", "intercepted", "step"),
    edit("computed: how", COMPUTED, '"hidden")', '"lr")', "intercepted", "step"),
    edit("computed: what a property reads", COMPUTED, "self.run_name = 2", "self.run_name = 3", "by_property by_method", "step absent tries"),
    edit("computed: what a property reads of the class", COMPUTED, "base = 7", "base = 8", "by_property by_class", "step"),
    edit("computed: the property", COMPUTED, "self.rate * ", "self.rate / ", "by_property", "step"),
    edit("computed: an attribute that hides the class's", COMPUTED, "# here", "derived.base = 1", "by_property by_class", "step"),
    edit("computed: an attribute that appears", COMPUTED, "# here", "derived.late = 1", "absent tries", "step"),
    edit("computed: an attribute of the class that appears", COMPUTED, "# here", "Derived.late = 1", "absent tries", "step"),
    edit("computed: what a cached property reads", COMPUTED, "0.3", "0.4", "by_cache", "step"),
    edit("computed: a cached property of an older state", COMPUTED, "# here", "caches.lr = 0.9; caches.doubled; caches.lr = 0.3", "by_cache", "step"),
    edit("flow: whichever way it is read", FLOW, "lr=0.5", "lr=0.7", LR, "deep deep_closure"),
    edit("flow: an attribute nobody reads", FLOW, "other=0.25", "other=0.3", "matches starred", "run formatted deep deep_closure later generator default"),
    edit("flow: an attribute of an attribute", FLOW, "width=8", "width=9", "deep deep_closure opened", "formatted run"),
    edit("flow: what is not read of an attribute", FLOW, '"inner"', '"outer"', "opened", "deep formatted run"),
    edit("flow: the other one", FLOW, "lr=4", "lr=5", "ternary either branch loop", "run deep formatted"),
]  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """All rows, looked at from one interpreter."""
    return probe_edits(tmp_path_factory.mktemp("reads"), ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_what_is_read_counts_and_nothing_else(
    row: Edit, seen: dict[str, tuple[ProbeResult, ProbeResult]]
) -> None:
    """What nothing reads leaves the key alone; a value that is passed on counts whole."""
    check(row, seen)
