"""The patterns that say how a value is used, on whichever Python this is."""

from __future__ import annotations

import pytest

from jaxd_protocol.fingerprint.code.reads import Instructions
from tests.shared.fingerprint.defining import code_of, reads


def test_instructions_that_do_nothing_are_left_out() -> None:
    """They differ from version to version; a jump to one is a jump to what follows."""
    found = Instructions(code_of("return cfg.lr"))
    assert [each.op for each in found][:2] == ["LOAD_GLOBAL", "LOAD_ATTR"]
    assert [each.value for each in found][:2] == ["cfg", "lr"]


def test_where_a_jump_leads_is_known() -> None:
    """Also where the instruction there is one that does nothing."""
    found = Instructions(code_of("y = cfg\nwhile x:\n    x = f(x)\nreturn cfg"))
    assert any(each.target for each in found)
    assert not found[0].target


def test_each_instruction_has_its_line() -> None:
    """That of the statement it belongs to."""
    found = Instructions(code_of("y = cfg\nreturn y"))
    assert [each.line for each in found if each.op == "LOAD_GLOBAL"] == [2]


def test_a_chain_may_begin_anywhere() -> None:
    """It is given with the place where it ends."""
    found = Instructions(code_of("return x.a['b'].c + 1"))
    steps, end = found.chain(1)
    assert steps == (("a", "a"), ("i", "b"), ("a", "c"))
    assert found.chain(end)[0] == ()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
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
    ],
)
def test_a_chain_is_followed_as_far_as_it_is_plain(body: str, expected: list[str]) -> None:
    """Attributes, items by a constant key, and the constant of a call; then the value counts."""
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


@pytest.mark.parametrize(
    ("body", "expected"),
    [
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
    ],
)
def test_what_the_code_itself_changes_is_marked(body: str, expected: list[str]) -> None:
    """Assigned, added to, or a container that something is put into."""
    assert reads(body) == expected


def test_a_read_that_is_written_as_well_is_written() -> None:
    """Whichever of the two comes first."""
    assert reads("x = MEMO\nMEMO[x] = 1") == reads("MEMO[x] = 1\nx = MEMO") == ["MEMO!"]
