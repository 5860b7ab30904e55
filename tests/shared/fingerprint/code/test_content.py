"""The content of a code object: what it does, however it is written."""

from __future__ import annotations

import dis
import sys

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.fingerprint.code.bytecode import BYTECODES, HERE, bytecode_of
from jaxd_protocol.fingerprint.code.reads import facts_of
from tests.ids import row

PLAIN_NAME_OPS = {
    *("STORE_NAME", "DELETE_NAME", "STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"),
    *("LOAD_NAME", "LOAD_METHOD", "IMPORT_NAME", "IMPORT_FROM", "LOAD_FROM_DICT_OR_GLOBALS"),
}
PSEUDO_OPS = {
    *("LOAD_SUPER_METHOD", "LOAD_ZERO_SUPER_METHOD", "LOAD_ZERO_SUPER_ATTR"),
    "INSTRUMENTED_LOAD_SUPER_ATTR",
}
"""What only the compiler has, and what only a profiler puts there."""


def _digest(source: str) -> bytes:
    names: dict[str, object] = {}
    exec(source, names)
    return facts_of(names["step"].__code__).digest  # type: ignore[attr-defined]


def test_every_instruction_with_a_name_is_known() -> None:
    """A new one may keep flags in its argument, which would not count."""
    known = PLAIN_NAME_OPS | PSEUDO_OPS | HERE.name_bits.keys()
    assert {dis.opname[each] for each in dis.hasname} <= known


def test_the_code_of_an_interpreter_that_is_not_in_the_table_is_refused() -> None:
    """With the versions that are read, and how to install one."""
    assert bytecode_of("cpython", sys.version_info[:2]) is HERE
    newest = max(BYTECODES)
    later = newest[0], newest[1] + 1
    with pytest.raises(ConfigurationError, match=r"cpython 3\.\d+\. Use CPython 3\.11 to 3\.\d+,"):
        bytecode_of("cpython", later)
    with pytest.raises(ConfigurationError, match="that of pypy 3"):
        bytecode_of("pypy", newest)


def test_what_does_the_same_has_one_digest() -> None:
    """Wherever lines break."""
    rows: list[tuple[str, str]] = [
        ("return x * y + 2", "return (\n        x\n        * y\n        + 2\n    )"),
        ("a = x; b = a; return b", "a = x\n    b = a\n    return b"),
        ("return x", "'Documented.'\n    return x"),
        ("return x", "pass\n    return x"),
        ("'Says.'\n    return x", "'Says more.'\n    return x"),
        ("return x", "\n\n    return x"),
        ("return x  # a comment", "return x"),
        ("return x", "return (x)"),
        (
            "class C:\n        'Says.'\n        def m(self): return 1\n    return C",
            "\n    class C:\n        'More.'\n        def m(self): return 1\n    return C",
        ),
    ]
    for one, other in rows:
        with row((one, other)):
            head = "def step(x, y):\n    "
            assert _digest(head + one) == _digest(head + other)


def test_what_does_something_else_has_another() -> None:
    """Also where the same names and constants are used."""
    rows: list[tuple[str, str]] = [
        ("return x + 1", "return x + 2"),
        ("return 1", "return 1.0"),
        ("return 0.0", "return -0.0"),
        ("return lambda: 1", "return lambda: 2"),
        ("return x in {1, 2}", "return x in {1, 3}"),
        ("return 'Says.'", "return 'Says more.'"),
        ("return 'a' if x else __doc__", "return 'b' if x else __doc__"),
        ("class C: text = 'Says.'\n    return C", "class C: text = 'Says more.'\n    return C"),
        ("return x - y", "return y - x"),
        ("return x.shape", "return x.size"),
        ("return x.max()", "return x.max"),
        ("return abs(x)", "return abs, x"),
        ("return [1, 2, x]", "return [2, 1, x]"),
        ("return (x, 1), 2", "return (x, 2), 1"),
        ("return f(a=x, b=1)", "return f(b=x, a=1)"),
        ("for x in y: break\n    else: return 1", "for x in y: continue\n    else: return 1"),
        ("while x: x = y(x)", "while y: x = y(x)"),
        ("try: x()\n    finally: y()", "try: y()\n    finally: x()"),
        ("try: x()\n    except ValueError: y()", "x()\n    try: pass\n    except ValueError: y()"),
        (
            "try: x(); y()\n    except ValueError: pass",
            "x()\n    try: y()\n    except ValueError: pass",
        ),
        ("with x: y()", "with y: x()"),
        ("return x if y else 1", "return 1 if y else x"),
    ]
    for one, other in rows:
        with row((one, other)):
            head = "def step(x, y):\n    "
            assert _digest(head + one) != _digest(head + other)


def test_the_content_holds_the_parameters() -> None:
    """Their names, and how they are given."""
    parameters = ["x", "y", "x, y", "*x", "x, /", "*, x", "**x"]
    assert len({_digest(f"def step({each}): return 1") for each in parameters}) == len(parameters)


def test_more_constants_than_a_byte_can_number() -> None:
    """A docstring moves the last one to where its number takes two bytes."""
    many = "[x + " + ", x + ".join(str(n / 4) for n in range(255)) + "]"
    plain, documented = (
        f"def step(x): return {many}",
        f"def step(x):\n    'Doc.'\n    return {many}",
    )
    assert _digest(plain) == _digest(documented) != _digest(plain.replace("63.5", "63.75"))
