from __future__ import annotations

from typing import Any

import pytest

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.pytree import dump_literal
from jaxd_protocol.pytree.references import Reference, function_mark, load_reference, replace_tokens


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("n", (((b"mark", 3),),)),
        ("c", (b"content",)),
        ("k", ("m", "C", b"")),
        ("i", ("m", "f")),
        ("m", (("o", (), b"t", "it"), "apply")),
        ("e", ("m", "Color", b"", "RED")),
        ("d", ("bfloat16",)),
        ("v", ("builtins.slice", (1, 2, None))),
        ("o", ()),
    ],
)
def test_a_reference_is_a_literal_on_the_wire(kind: str, detail: Any) -> None:
    """And is read back from it."""
    reference = Reference(kind, detail, b"token", "what it is")
    assert dump_literal(reference.plain())
    assert load_reference(reference.plain()) == reference


@pytest.mark.parametrize(
    "value",
    [
        None,
        (),
        ("o", (), b""),
        ("?", (), b"", ""),
        ("o", (1,), b"", ""),
        ("n", (1,), b"", ""),
        ("c", ("text",), b"", ""),
        ("k", ("m", "C"), b"", ""),
        ("o", (), "token", ""),
        (1, (), b"", ""),
        ("o", [], b"", ""),
    ],
    ids=str,
)
def test_what_is_no_reference_is_refused(value: Any) -> None:
    """Whatever a server may have sent."""
    with pytest.raises(ProtocolError):
        load_reference(value)


def test_a_mark_does_not_give_the_fingerprint_away() -> None:
    """It names a function only to those who know it."""
    assert function_mark(b"a" * 16) == function_mark(b"a" * 16) != function_mark(b"b" * 16)
    assert function_mark(b"a" * 16) != b"a" * 16


def test_a_skeleton_gets_the_tokens_of_another_process() -> None:
    """Those of owners of methods as well; what has no token gets none."""
    owner = Reference("i", ("m", "f"), b"o" * 16, "owner")
    found = [
        Reference("m", (owner.plain(), "apply"), b"m" * 16, "method"),
        Reference("d", ("int8",), b"", "dtype"),
    ]
    skeleton = b"L" + b"".join(b"R" + dump_literal(one.plain()) for one in found)
    other = {"owner": b"O" * 16, "method": b"M" * 16}
    changed = replace_tokens(skeleton, found, lambda reference: other[reference.about])
    assert changed == skeleton.replace(b"o" * 16, b"O" * 16).replace(b"m" * 16, b"M" * 16)
    assert changed != skeleton
