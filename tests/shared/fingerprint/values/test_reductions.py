"""Whether a `__new__` only makes a new object can be read from its code, or is not known."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd_protocol.fingerprint.values.reductions import returns_new_object

NEW = {
    "by super": "return super().__new__(cls)",
    "by object": "return object.__new__(cls)",
    "with the class": "return super(It, cls).__new__(cls)",
    "by a variable": "made = super().__new__(cls)\n        TABLE.append(made)\n        return made",
    "on each way": "made = super().__new__(cls)\n        if TABLE: return made\n"
    "        made.x = args\n        return made",
}
OTHER = {
    "one that is kept": "cls.it = cls.it or super().__new__(cls)\n        return cls.it",
    "on one way": "if TABLE: return TABLE[0]\n        return super().__new__(cls)",
    "given twice": "made = super().__new__(cls)\n        if TABLE: made = TABLE[0]\n"
    "        return made",
    "by a loop": "made = super().__new__(cls)\n        for made in TABLE: pass\n"
    "        return made",
    "by another function": "return TABLE.get(super().__new__(cls))",
    "by what was looked up": "return TABLE[0].super().__new__(cls)",
    "nothing": "made = super().__new__(cls)",
    "nothing on one way": "made = super().__new__(cls)\n        return made if TABLE else None",
    "by a function in it": "made = super().__new__(cls)\n        def other():\n"
    "            nonlocal made\n            made = TABLE\n        other()\n        return made",
    "as one of two": "made = TABLE[0] if TABLE else super().__new__(cls)\n        return made",
    "as the other": "made = TABLE and super().__new__(cls)\n        return made",
    "at once as the other": "return TABLE or super().__new__(cls)",
    "in two names": "made, TABLE[0] = super().__new__(cls), 3\n        return made",
}


def new_of(body: str, **names: Any) -> Any:
    """The function that a class statement makes of it."""
    place: dict[str, Any] = {"__name__": "__main__", "TABLE": [], **names}
    exec(f"class It:\n    it = None\n    def __new__(cls, *args):\n        {body}\n", place)
    return vars(place["It"])["__new__"].__func__


@pytest.mark.parametrize("how", NEW)
def test_what_the_next_class_has_made_is_new(how: str) -> None:
    """Whatever else is done with it."""
    assert returns_new_object(new_of(NEW[how]))


@pytest.mark.parametrize("how", OTHER)
def test_what_may_be_another_object_is_not(how: str) -> None:
    """As soon as one `return` may give it."""
    assert not returns_new_object(new_of(OTHER[how]))


def test_a_module_may_have_names_of_its_own() -> None:
    """Whose `super` and `object` may be anything."""
    assert not returns_new_object(new_of(NEW["by super"], super=lambda: None))
    assert not returns_new_object(new_of(NEW["by object"], object=None))
