"""What a code object reads, on whichever Python this is."""

from __future__ import annotations

import pytest

from jaxd_protocol.fingerprint.code.reads import Import, facts_of
from tests.ids import row
from tests.shared.fingerprint.defining import code_of, define, facts, reads, shown_steps


def test_each_read_has_the_line_where_it_is_first() -> None:
    """Counted from the beginning of the file."""
    found = facts("y = 1\nz = cfg.lr\nreturn cfg.lr, other").reads
    assert [(read.name, read.line) for read in found] == [("cfg", 3), ("other", 4)]


def test_names_are_all_globals_that_are_touched() -> None:
    """Those of nested functions as well."""
    found = facts("global N\nN = 1\ndef g(): return cfg.lr\nreturn g")
    assert found.names == {"N", "cfg"}


def test_uses_of_a_parameter_are_all_that_is_read_of_it() -> None:
    """None are given where it may be read in another way as well."""
    rows: list[tuple[str, str, dict[str, list[str]]]] = [
        ("self", "return self.a.b, self['c']", {"self": [".a.b", "['c']"]}),
        ("self, x", "return self.a + x", {"self": [".a"]}),
        ("self", "return 1", {"self": []}),
        ("self", "return self", {}),
        ("self", "return f(self), self.a", {"self": ["→0", ".a"]}),
        ("self", "return f(x, key=self.a), f(*self)", {}),
        ("self", "return f(1, k=self.a) + m.f(self['b'])", {"self": [".a→k", "['b']→0"]}),
        ("self", "c = self.a\nreturn c.b, c['d']", {"self": [".a.b", ".a['d']"]}),
        ("self", "c = self\nd = c.a\nreturn d.b, c.e", {"self": [".e", ".a.b"]}),
        ("self", "c = self.a\nreturn lambda: c.b", {"self": [".a.b"]}),
        ("self", "c = self.a\nreturn c", {"self": [".a"]}),
        ("self", "c = self\nreturn c", {}),
        ("self", "c = self.a\nreturn f(c.b)", {"self": [".a.b→0"]}),
        ("self", "c = self.a\nc = self.b\nreturn c.d", {"self": [".a", ".b"]}),
        ("self", "c = self.a if x else 1\nreturn c.d", {"self": [".a"]}),
        ("self", "c = d = self.a\nreturn c.b", {"self": [".a"]}),
        ("self", "c = self.a\ndel c\nreturn 1", {"self": [".a"]}),
        ("self", "c = self.a\nreturn eval('c')", {}),
        ("self", "c = self.a\ndef g():\n    nonlocal c\n    c = 1\nreturn c.b", {"self": [".a"]}),
        ("self", "for _ in x:\n    d = c.b\n    c = self.a\nreturn d.e", {"self": [".a.b.e"]}),
        ("self, c", "c = self.a\nreturn c.b", {"self": [".a"]}),
        ("self", "self = f()\nreturn self.a", {}),
        ("self", "self.n += 1\nself.m = 2", {"self": [".n+", "=m"]}),
        ("self", "return lambda: self.a", {"self": [".a"]}),
        ("self", "return lambda: self", {}),
        ("self", "def g():\n    nonlocal self\n    self = 1\nreturn self.a", {}),
        ("self", "return super().f(), self.a", {}),
        ("self", "return locals()", {}),
        ("self", "return eval('self')", {}),
        ("self, other", "return self.a, other.b", {"self": [".a"], "other": [".b"]}),
        ("*, key", "return key.a", {"key": [".a"]}),
        ("*args, **kwargs", "return args[0], kwargs['a']", {}),
        ("self", "return ((self if f() else g()).a, 1, h(), h(), h())", {}),
        ("self", "return [self.a for _ in range(3)]", {"self": [".a"]}),
    ]
    for parameters, body, expected in rows:
        with row((parameters, body, expected)):
            found = facts(body, parameters).uses
            assert {name: [*map(shown_steps, uses)] for name, uses in found.items()} == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return cfg.lr, cfg['a']", {"cfg": [".lr", "['a']"]}),
        ("return lambda: cfg.lr", {"cfg": [".lr"]}),
        ("return cfg", {}),
        ("nonlocal cfg\ncfg = cfg.next", {}),
    ],
)
def test_uses_of_a_closure_are_all_that_is_read_of_it(
    body: str, expected: dict[str, list[str]]
) -> None:
    """Also by functions further in."""
    text = "\n        ".join(body.split("\n"))
    source = f"def make(cfg):\n    def f():\n        {text}\n    return f"
    found = facts_of(define(source).make(1).__code__).uses
    assert {name: [*map(shown_steps, uses)] for name, uses in found.items()} == expected


A_MODULE: tuple[str, ...] = ()
"""What `import a` binds: the module itself."""


def test_an_import_says_what_it_binds() -> None:
    """Which variable holds which part of which module."""
    rows: list[tuple[str, Import]] = [
        ("import a", Import("a", 0, (), (("a", A_MODULE),))),
        ("import a as b", Import("a", 0, (), (("b", A_MODULE),))),
        ("import a.b", Import("a.b", 0, (), (("a", None),))),
        ("import a.b as c", Import("a.b", 0, (), (("c", A_MODULE),))),
        ("import a.b.c as d", Import("a.b.c", 0, (), (("d", A_MODULE),))),
        ("from a import b", Import("a", 0, ("b",), (("b", ("b",)),))),
        (
            "from a.b import c as d, e",
            Import("a.b", 0, ("c", "e"), (("d", ("c",)), ("e", ("e",)))),
        ),
        ("from . import b", Import("", 1, ("b",), (("b", ("b",)),))),
        ("from ..a import b", Import("a", 2, ("b",), (("b", ("b",)),))),
    ]
    for statement, expected in rows:
        with row((statement, expected)):
            for body in (statement, f"def g():\n    {statement}\nreturn g"):
                (found,) = facts(body).imports
                assert found._replace(uses=()) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("import a\nreturn a.b.c", {"a": [".b.c"]}),
        ("import a as b\nreturn b.c(b.d)", {"b": [".c", ".d"]}),
        ("from a import b\nreturn b(x)", {}),
        ("from a import b\nreturn b.c", {"b": [".c"]}),
        ("import a\nreturn f(a)", {"a": ["→0"]}),
        ("import a\na = f()\nreturn a.b", {}),
        ("import a\nreturn lambda: a.b", {"a": [".b"]}),
    ],
)
def test_uses_of_what_is_imported_are_found(body: str, expected: dict[str, list[str]]) -> None:
    """As those of parameters."""
    found = facts(body, "").uses
    assert {name: [*map(shown_steps, uses)] for name, uses in found.items() if uses} == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def g():\n    import a as b\n    return b.c\nb = x\nreturn g() + b.d", [".c"]),
        ("def g():\n    import a as x\n    return x.c\nreturn g() + x.d", [".c"]),
        ("def g():\n    import a as b\n    return b.c\nreturn g()", [".c"]),
        ("def g():\n    import a as b\n    return (lambda: b.c)() + b.e\nreturn g()", [".c", ".e"]),
        (
            "b = x\ndef g():\n    nonlocal b\n    import a as b\n    return b.c\nreturn g() + b.d",
            None,
        ),
        ("class G:\n    import a as b\n    c = b.c\nb = x\nreturn b.d", None),
    ],
)
def test_uses_of_what_nested_code_imports_are_those_of_its_own_variable(
    body: str, expected: list[str] | None
) -> None:
    """Another variable of that name around it is another one; None: all of it counts."""
    (found,) = facts(body).imports
    uses = found.uses_at(())
    assert (None if uses is None else sorted(map(shown_steps, uses))) == expected


def test_a_global_that_is_imported_is_a_read_as_well() -> None:
    """An import statement may assign a global."""
    assert reads("global a\nimport a\nreturn a.b") == ["a!", "a.b"]


def test_a_code_object_is_read_once() -> None:
    """Each time after that, what was found."""
    code = code_of("return cfg.lr")
    assert facts_of(code) is facts_of(code)


def test_a_chain_is_followed_as_far_as_it_is_plain() -> None:
    """Attributes, items by a constant key, and the constant of a call; then the value counts."""
    rows: list[tuple[str, list[str]]] = [
        ("return cfg", ["cfg"]),
        ("return cfg.lr", ["cfg.lr"]),
        ("return cfg.model.width", ["cfg.model.width"]),
        ("return cfg['a']", ["cfg['a']"]),
        ("return cfg['a']['b'].c", ["cfg['a']['b'].c"]),
        ("return cfg[0]", ["cfg[0]"]),
        ("return cfg[-1]", ["cfg[-1]"]),
        ("return cfg.get('a')", ["cfg.get('a')"]),
        ("return cfg.get('a', 0)", ["cfg.get('a')"]),
        ("return cfg.get('a', x)", ["cfg.get('a')"]),
        ("return getenv('A')", ["getenv('A')"]),
        ("return mod.sub.f(x)", ["mod.sub.f"]),
        ("return mod.f(cfg.lr)", ["mod.f", "cfg.lr→0"]),
        ("return f(cfg)", ["f", "cfg→0"]),
        ("return f(x)(cfg)", ["f", "cfg"]),
        ("return f(g(x), y, *cfg)", ["f", "g", "y", "cfg"]),
        ("return f(g(cfg), k=cfg.a)", ["f", "g", "cfg→0", "cfg.a→k"]),
        ("return (f if x else f)(cfg)", ["f", "cfg"]),
        ("return f(x, cfg if x else y)", ["f", "cfg", "y"]),
        ("return f([cfg], cfg.a(x), -cfg, (cfg))", ["f", "cfg", "cfg.a", "cfg→3"]),
        ("y = cfg\nreturn y.lr", ["cfg.lr"]),
        ("return cfg[x]", ["cfg"]),
        ("return cfg[1.5]", ["cfg"]),
        ("return cfg[1:2]", ["cfg"]),
        ("return cfg['a':]", ["cfg"]),
        ("return cfg.a, cfg.b, cfg.a", ["cfg.a", "cfg.b"]),
        ("return [cfg.lr * y for y in x]", ["cfg.lr"]),
        ("return lambda: cfg.lr", ["cfg.lr"]),
        ("def g(): return cfg.lr\nreturn cfg.steps, g", ["cfg.steps", "cfg.lr"]),
        ("return f'{cfg.lr}'", ["cfg.lr"]),
        ("with cfg.scope: return 1", ["cfg.scope"]),
        ("for y in cfg.items: x += y", ["cfg.items"]),
        ("return x", []),
    ]
    for body, expected in rows:
        with row((body, expected)):
            assert reads(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("(cfg if x else other).lr", {"cfg", "other"}),
        ("(cfg or other).lr", {"cfg", "other"}),
        ("(cfg and other).lr", {"cfg", "other"}),
        ("(cfg.a if x else other.b).lr", {"cfg.a", "other.b"}),
        ("cfg.a if x else other.b", {"cfg.a", "other.b"}),
        ("(x or cfg)['a']", {"cfg"}),
    ],
)
def test_a_chain_ends_where_paths_meet(body: str, expected: set[str]) -> None:
    """What comes after belongs to either of two values."""
    much_after = ", x" * 9  # else Python 3.12 writes the rest behind either of them
    assert set(reads(f"return ({body}{much_after})")) == expected


def test_what_the_code_itself_changes_is_marked() -> None:
    """Assigned, added to, or a container that something is put into."""
    rows: list[tuple[str, list[str]]] = [
        ("cfg.n = x", ["cfg=n!"]),
        ("cfg.a.n = x", ["cfg.a=n!"]),
        ("cfg.n += x", ["cfg.n+!"]),
        ("cfg.a.n += x", ["cfg.a.n+!"]),
        ("cfg['n'] += x", ["cfg['n']+!"]),
        ("cfg.a['n'] += x", ["cfg.a['n']+!"]),
        ("cfg[x] = 1", ["cfg!"]),
        ("cfg['n'] = x", ["cfg!"]),
        ("cfg.memo[x] = 1", ["cfg.memo!"]),
        ("cfg.memo[x] = f(x)", ["f", "cfg.memo!"]),
        ("del cfg.memo[x]", ["cfg.memo!"]),
        ("cfg.append(x)", ["cfg.append!"]),
        ("cfg.seen.add(x)", ["cfg.seen.add!"]),
        ("return cfg.setdefault('a', x)", ["cfg.setdefault('a')!"]),
        ("cfg.update(a=x)", ["cfg.update!"]),
        ("return cfg.count(x)", ["cfg.count"]),
        ("x[cfg.n] = 1", ["cfg.n"]),
        ("x.n = cfg.n", ["cfg.n"]),
        ("x['a'] = cfg", ["cfg"]),
        ("global N\nN = x", ["N!"]),
        ("global N\nN += x", ["N!"]),
        ("global N\ndel N", ["N!"]),
        ("global N\nN = x\nreturn N.a", ["N!", "N.a"]),
    ]
    for body, expected in rows:
        with row((body, expected)):
            assert reads(body) == expected


def test_a_read_that_is_written_as_well_is_written() -> None:
    """Whichever of the two comes first."""
    assert reads("x = MEMO\nMEMO[x] = 1") == reads("MEMO[x] = 1\nx = MEMO") == ["MEMO!"]
