"""What a server has made: each class and callable once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from jaxd_protocol.pickling.unpack.content_table import ClassId, ContentTable

ONE = ClassId(b"1" * 16, "Cls", "mine")


def made(table: ContentTable, name: ClassId = ONE) -> type:
    """The class of that id, in an unpacking of its own."""
    with table.unpacking():
        return table.class_of(name, lambda: type("Cls", (), {}))


def test_a_class_is_made_once() -> None:
    """Whoever sends it."""
    table = ContentTable()
    assert made(table) is made(table) is table.find_class(ONE)


def test_another_content_or_name_is_another_class() -> None:
    """Also when they are called the same."""
    table = ContentTable()
    others = [ClassId(b"2" * 16, "Cls", "mine"), ClassId(ONE.content, "Other", "mine")]
    others.append(ONE._replace(module="other"))
    assert len({made(table, name) for name in (ONE, *others)}) == 4


@pytest.mark.parametrize("main", ["__main__", "__mp_main__"])
def test_a_script_may_be_a_module_elsewhere(main: str) -> None:
    """Its classes are the same in both."""
    table = ContentTable()
    first = made(table)
    assert made(table, ONE._replace(module=main)) is first
    table = ContentTable()
    first = made(table, ONE._replace(module=main))
    assert made(table) is first


def test_a_script_that_may_be_either_of_two_modules_is_neither() -> None:
    """Nothing is guessed."""
    table = ContentTable()
    both = {made(table), made(table, ONE._replace(module="other"))}
    assert made(table, ONE._replace(module="__main__")) not in both


def test_a_class_is_completed_once() -> None:
    """In the unpacking that made it; a later one leaves it alone."""
    table = ContentTable()
    done = []
    for _ in range(2):
        with table.unpacking():
            cls = table.class_of(ONE, lambda: type("Cls", (), {}))
            table.fill_once(cls, lambda: done.append(1))
            table.fill_once(cls, lambda: done.append(1))
    assert done == [1]


def test_what_an_unpacking_made_that_failed_is_forgotten() -> None:
    """Its classes are incomplete."""
    table = ContentTable()

    def fail() -> None:
        with table.unpacking():
            table.class_of(ONE, lambda: type("Cls", (), {}))
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert table.find_class(ONE) is None


def test_a_class_is_not_seen_before_it_is_complete() -> None:
    """Another thread waits, and gets the finished one."""
    table = ContentTable()
    begun, looking = threading.Event(), threading.Event()
    found: list[Any] = []

    def other() -> None:
        begun.wait()
        assert table.find_class(ONE) is None
        looking.set()
        with table.unpacking():
            cls = table.class_of(ONE, lambda: type("Wrong", (), {}))
            found.append((cls.__name__, getattr(cls, "done", False)))

    thread = threading.Thread(target=other)
    thread.start()
    with table.unpacking():
        cls = table.class_of(ONE, lambda: type("Cls", (), {}))
        begun.set()
        looking.wait()
        table.fill_once(cls, lambda: setattr(cls, "done", True))
    thread.join()
    assert found == [("Cls", True)]


def test_a_callable_is_made_once_per_content() -> None:
    """Another one for other content."""
    table = ContentTable()
    first = table.callable_of(b"a", object)
    assert table.callable_of(b"a", object) is first
    assert table.callable_of(b"b", object) is not first


def test_the_oldest_callables_go_first() -> None:
    """Looking one up makes it young."""
    table = ContentTable(max_callables=2)
    a, b = (table.callable_of(name, object) for name in (b"a", b"b"))
    table.callable_of(b"a", object)
    table.callable_of(b"c", object)
    assert table.callable_of(b"a", object) is a
    assert table.content_id_of(b) is None


def test_ids_are_found_for_what_was_made_here() -> None:
    """Results name classes and callables by them."""
    table = ContentTable()
    cls, function = made(table), table.callable_of(b"f" * 16, object)
    assert table.content_id_of(cls) == ONE.content
    assert table.content_id_of(function) == b"f" * 16
    assert table.content_id_of(int) is None
    assert table.content_id_of(len) is None
