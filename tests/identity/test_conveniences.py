"""Small libraries that people write settings and checks with: one key everywhere, each edit seen.

Dicts with attributes, classes that a library fills in, functions that a library wraps in a check.
"""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.identity.probing import Job, ProbeResult, probe
from tests.identity.projects import Edit, check, edit, probe_edits, write

OWN_DICT = """
class Settings(dict):
    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.__dict__ = self
    def half(self): return self.rate / 2
cfg = Settings(rate=0.5, name="first", deep=Settings(width=8, note="a"))
"""
LOOKED_UP = """
class Settings(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    def half(self): return self.rate / 2
cfg = Settings(rate=0.5, name="first", deep=Settings(width=8, note="a"))
"""
BY_METHOD = """
class Settings(dict):
    def __getattr__(self, key):
        try: return self[key]
        except KeyError: raise AttributeError(key) from None
    def half(self): return self.rate / 2
cfg = Settings(rate=0.5, name="first", deep=Settings(width=8, note="a"))
"""
OF_LIBRARY = """
from {0} import {1} as Settings
cfg = Settings(rate=0.5, name="first", deep=Settings(width=8, note="a"))
"""
READERS = """
def use(settings): return len([settings])
def read(settings): return settings.rate
def narrow(x): return x * read(cfg)
def step(x): return x * cfg.rate
def item(x): return x * cfg["rate"]
def deep(x): return x * cfg.deep.width
def whole(x): return x * use(cfg)
def has(x): return x * ("late" in cfg)
def asks(x): return x * cfg.get("late", 2)
# end
"""
MAPPINGS = {
    "own dict": OWN_DICT,
    "looked up": LOOKED_UP,
    "by method": BY_METHOD,
    "easydict": OF_LIBRARY.format("easydict", "EasyDict"),
    "munch": OF_LIBRARY.format("munch", "Munch"),
    "box": OF_LIBRARY.format("box", "Box"),
}
UNSURE = """
class Scaled(dict):
    def __getitem__(self, key): return dict.__getitem__(self, key) * dict.__getitem__(self, "scale")
class Lower(dict):
    def __getattr__(self, key): return self[key.lower()]
class Wraps(dict):
    def __getattr__(self, key):
        found = self[key]
        return Wraps(found) if isinstance(found, dict) else found
class Counts(dict):
    def __getattr__(self, key): return self[key] if len(self) > 1 else self[key] * 2
scaled, lower, wraps, counts = (kind(rate=0.5, scale=2.0, other=1) for kind in (Scaled, Lower, Wraps, Counts))
def by_item(x): return x * scaled["rate"]
def by_case(x): return x * lower.RATE
def by_wrapping(x): return x * wraps.rate
def by_number(x): return x * counts.rate
def step(x): return x
"""
BEARTYPE = """
from beartype import beartype
K = 2
class Mine:
    size = 3
def helper(x): return x * K
@beartype
def step(x: float, mine: "Mine | None" = None, *, names: tuple = ()) -> float: return helper(x)
@beartype
class Model:
    rate: float = 0.5
    def run(self, x: float, y: list[int] | None = None) -> float: return x * self.rate
def method(x): return Model().run(x)
"""
JAXTYPING = """
from beartype import beartype
from dataclasses import dataclass
from jaxtyping import Array, Float, jaxtyped
K = 2
@jaxtyped(typechecker=beartype)
def step(x: Float[Array, "a b"], by: int = 3) -> Float[Array, "a b"]: return x * K * by
@jaxtyped(typechecker=beartype)
@dataclass
class Model:
    w: Float[Array, "a"]
    rate: float = 0.5
    def run(self, x): return x * self.rate
def method(x): return Model(x).run(x)
"""
TYPEGUARD = """
from typeguard import typechecked
K, UNREAD = 2, 1
@typechecked
def step(x: float, by: "int" = 3) -> float: return x * K
def by_name(x): return globals()["K"] * x
@typechecked
def both(x: float): return globals()["K"] * x
"""
PYDANTIC = """
from typing import Annotated, Generic, TypeVar
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, computed_field, field_validator
T = TypeVar("T")
def more(value): return value + 1
class Inner(BaseModel):
    width: int = Field(8, gt=0)
class Settings(BaseModel):
    model_config = ConfigDict(frozen=True)
    rate: float = 0.5
    name: str = "first"
    inner: Inner = Inner()
    tags: dict[str, str] = {"ref": "model:123456789"}
    extra: Annotated[float, AfterValidator(more)] = 1.0
    @field_validator("rate")
    @classmethod
    def checked(cls, value): return value * 3
    @computed_field
    @property
    def double(self) -> float: return self.rate * 2
class Held(BaseModel, Generic[T]):
    value: T
cfg = Settings(rate=0.25)
def use(settings): return len([settings])
def read(settings): return settings.rate
def narrow(x): return x * read(cfg)
def step(x): return x * cfg.rate
def deep(x): return x * cfg.inner.width
def whole(x): return x * use(cfg)
def doubled(x): return x * cfg.double
def makes(x): return Settings(rate=0.75).rate * x
def generic(x): return Held[float](value=2.0).value * x
"""
PYDANTIC_NAMES = "step narrow deep whole doubled makes generic"
PYDANTIC_DATACLASS = """
from pydantic.dataclasses import dataclass
@dataclass
class Settings:
    rate: float = 0.5
    name: str = "first"
cfg = Settings()
def step(x): return x * cfg.rate
def makes(x): return Settings(rate=2.0).rate * x
"""
ATTRS = """
import attr
from attrs import define, field, frozen, validators
@define
class Settings:
    rate: float = 0.5
    name: str = "first"
    def half(self): return self.rate / 2
@frozen
class Frozen:
    rate: float = field(default=0.5, validator=validators.gt(0))
    tags: list = field(factory=list)
@attr.s
class Old:
    rate = attr.ib(default=0.5, type=float, converter=float)
cfg = Settings()
def step(x): return x * cfg.rate
def makes(x): return Settings(0.75).half() * x
def freezes(x): return Frozen(0.75).rate * x
def old(x): return Old().rate * x
"""
ATTRS_NAMES = "step makes freezes old"

PROJECTS: dict[str, tuple[str, str]] = {
    **{
        name: (text + READERS, "step narrow item deep whole has asks")
        for name, text in MAPPINGS.items()
    },
    "unsure": (UNSURE, "by_item by_case by_wrapping by_number"),
    "beartype": (BEARTYPE, "step method"),
    "jaxtyping": (JAXTYPING, "step method"),
    "typeguard": (TYPEGUARD, "step by_name both"),
    "pydantic": (PYDANTIC, PYDANTIC_NAMES),
    "pydantic dataclass": (PYDANTIC_DATACLASS, "step makes"),
    "attrs": (ATTRS, ATTRS_NAMES),
}
"""The texts, and the functions in them."""

_MODULES = {
    "jaxtyping": ("jaxtyping", "beartype"),
    **dict.fromkeys(("own dict", "looked up", "by method", "unsure"), ()),
}


def _is_installed(name: str) -> bool:
    wanted = _MODULES.get(name, (name.split(" ", maxsplit=1)[0],))
    return all(find_spec(each) is not None for each in wanted)


OF_MAPPINGS = [
    ("an item that is read", "rate=0.5", "rate=0.75", "step narrow item whole", "deep"),
    ("an item that few read", 'name="first"', 'name="second"', "whole", "step narrow item deep has asks"),
    ("an item further down", "width=8", "width=9", "deep whole", "step narrow item"),
    ("an unread item there", 'note="a"', 'note="b"', "whole", "step narrow item deep"),
    ("an item set later", "# end", 'cfg["rate"] = 3.0', "step narrow item whole", "deep has asks"),
    ("an item that appears", "# end", 'cfg["late"] = 3.0', "has asks whole", "step narrow item deep"),
]  # fmt: skip
ROWS = [
    *(edit(f"{name}: {says}", PROJECTS[name][0], *change) for name in MAPPINGS for says, *change in OF_MAPPINGS),
    edit("by method: what the method does", PROJECTS["by method"][0], "raise AttributeError(key)", "raise LookupError(key)", "step narrow deep whole item"),
    edit("own dict: a method of the class", PROJECTS["own dict"][0], "rate / 2", "rate / 3", "step narrow deep whole item"),
    edit("unsure: what is read with each", UNSURE, "scale=2.0", "scale=3.0", "by_item by_case by_wrapping by_number", "step"),
    edit("beartype: what is reached", BEARTYPE, "K = 2", "K = 3", "step", "method"),
    edit("beartype: a type that is checked", BEARTYPE, "step(x: float", "step(x: int", "step", "method"),
    edit("beartype: a type of the user's", BEARTYPE, "size = 3", "size = 4", "step", "method"),
    edit("beartype: a type in a method", BEARTYPE, "run(self, x: float", "run(self, x: int", "method", "step"),
    edit("beartype: a default in a class", BEARTYPE, "rate: float = 0.5", "rate: float = 0.25", "method", "step"),
    edit("beartype: taken away", BEARTYPE, "@beartype\ndef", "def", "step", "method"),
    edit("jaxtyping: what is reached", JAXTYPING, "K = 2", "K = 3", "step", "method"),
    edit("jaxtyping: a shape", JAXTYPING, 'x: Float[Array, "a b"], by', 'x: Float[Array, "a c"], by', "step", "method"),
    edit("jaxtyping: a default", JAXTYPING, "by: int = 3", "by: int = 4", "step", "method"),
    edit("jaxtyping: a field's default", JAXTYPING, "= 0.5", "= 0.25", "method", "step"),
    edit("typeguard: what is reached", TYPEGUARD, "K, UNREAD = 2", "K, UNREAD = 3", "step by_name both"),
    edit("typeguard: what is not", TYPEGUARD, "= 2, 1", "= 2, 5", "by_name both", "step"),
    edit("typeguard: a type that is checked", TYPEGUARD, "x: float, by", "x: int, by", "step by_name both"),
    edit("pydantic: a field that is read", PYDANTIC, "rate=0.25", "rate=0.125", "step narrow whole doubled", "deep makes generic"),
    edit("pydantic: a default", PYDANTIC, '"first"', '"second"', "whole makes", "step narrow deep doubled generic"),
    edit("pydantic: a default further down", PYDANTIC, "Field(8", "Field(9", "deep whole makes", "step narrow doubled generic"),
    edit("pydantic: a limit", PYDANTIC, "gt=0", "gt=1", "whole makes", "step narrow deep doubled generic"),
    edit("pydantic: a type that is converted to", PYDANTIC, "width: int", "width: float", "whole makes", "step narrow doubled generic"),
    edit("pydantic: what a validator does", PYDANTIC, "value * 3", "value * 4", "step narrow whole doubled makes", "deep generic"),
    edit("pydantic: a validator in a type", PYDANTIC, "value + 1", "value + 2", "whole makes", "step narrow deep doubled generic"),
    edit("pydantic: a property", PYDANTIC, "rate * 2", "rate * 4", "doubled whole makes", "step narrow deep generic"),
    edit("pydantic: a default that looks like an address", PYDANTIC, "model:123456789", "model:987654321", "whole makes", "step narrow deep doubled generic"),
    edit("pydantic: what a generic class holds", PYDANTIC, "Held[float]", "Held[int]", "generic", "step narrow makes"),
    edit("pydantic dataclass: a default", PYDANTIC_DATACLASS, "0.5", "0.75", "step makes"),
    edit("pydantic dataclass: another default", PYDANTIC_DATACLASS, '"first"', '"second"', "makes", "step"),
    edit("attrs: a default", ATTRS, "rate: float = 0.5", "rate: float = 0.25", "step makes", "freezes old"),
    edit("attrs: types", ATTRS, 'name: str = "first"', 'name: object = "first"', "", ATTRS_NAMES),
    edit("attrs: a type that is given", ATTRS, "type=float", "type=int", "", ATTRS_NAMES),
    edit("attrs: a converter", ATTRS, "converter=float", "converter=int", "old", "step makes freezes"),
    edit("attrs: a validator", ATTRS, "gt(0)", "gt(0.5)", "freezes", "step makes old"),
    edit("attrs: a factory", ATTRS, "factory=list", "factory=tuple", "freezes", "step makes old"),
    edit("attrs: a method", ATTRS, "rate / 2", "rate / 3", "makes", "step freezes old"),
    edit("attrs: a class that is no longer frozen", ATTRS, "@frozen", "@define", "freezes", "step makes old"),
]  # fmt: skip
ROWS = [row for row in ROWS if _is_installed(row.says.partition(":")[0])]
PLAIN = [
    Edit(name, text, text, (), tuple(names.split()))
    for name, (text, names) in PROJECTS.items()
    if _is_installed(name)
]


PRELOAD = [
    name
    for name in (
        "attrs",
        "beartype",
        "box",
        "easydict",
        "jaxtyping",
        "munch",
        "pydantic",
        "pydantic.main",
        "pydantic.types",
        "typeguard",
    )
    if find_spec(name.partition(".")[0]) is not None
]
"""Loaded once, ahead of all projects."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """All rows, looked at from one interpreter; those of jaxtyping from one that has jax."""
    found: dict[str, tuple[ProbeResult, ProbeResult]] = {}
    for of_jax in (False, True):
        rows = [row for row in (*PLAIN, *ROWS) if row.says.startswith("jaxtyping") is of_jax]
        preload = ["jax", "jax.numpy", *PRELOAD] if of_jax else PRELOAD
        if rows:
            found |= probe_edits(tmp_path_factory.mktemp("conveniences"), rows, *preload)
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_an_edit_changes_what_it_reaches(
    row: Edit, seen: dict[str, tuple[ProbeResult, ProbeResult]]
) -> None:
    """That, and nothing else."""
    check(row, seen)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ProbeResult]:
    """The same projects in other folders, in an interpreter with other hashes and addresses."""
    folder = tmp_path_factory.mktemp("elsewhere")
    jobs = [Job(str(write(folder / row.says, row.before)), row.kept) for row in PLAIN]
    found = probe(jobs, preload=("jaxd_protocol.fingerprint", *PRELOAD[::-1]), PYTHONHASHSEED="7")
    return dict(zip([row.says for row in PLAIN], found, strict=True))


@pytest.mark.parametrize("name", PROJECTS)
def test_a_function_has_one_key_in_every_process(
    name: str,
    seen: dict[str, tuple[ProbeResult, ProbeResult]],
    elsewhere: dict[str, ProbeResult],
) -> None:
    """Nothing that such a library makes of an address or a hash counts."""
    if not _is_installed(name):
        pytest.skip(f"{name} is not installed")
    here = {each: seen[name][0].digest(each) for each in PROJECTS[name][1].split()}
    assert here == elsewhere[name].digests()
