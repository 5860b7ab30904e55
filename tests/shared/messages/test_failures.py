from __future__ import annotations

import queue
import sys
import threading
import traceback
import types
from typing import Any, NoReturn

import numpy as np
import pytest

from jaxd.results.reader import ResultReader
from jaxd_protocol import errors
from jaxd_protocol.errors import ArgumentError, Busy, JaxdError, RemoteError
from jaxd_protocol.fingerprint import content_id
from jaxd_protocol.messages.calls import is_failure, origin_of
from jaxd_protocol.messages.failures import ForwardedFailure, decode_failure, encode_failure
from jaxd_protocol.pytree import dump_literal
from jaxd_protocol.wire import Frame
from jaxd_protocol.wire.connection import _usual_message, encode_reply
from tests.ids import row
from tests.server.codec.test_results import arrived


class Plain(Exception):
    """Nothing special."""


class Demanding(ValueError):
    """Its `__init__` takes what its `args` do not have."""

    def __init__(self, *, code: int, detail: str) -> None:
        super().__init__(f"{detail} ({code})")
        self.code = code


class Unspeakable(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class Picky(Exception):
    """It cannot be made at all."""

    def __new__(cls, *args: Any) -> NoReturn:
        raise AssertionError("made")


class Refused(Exception):
    """Has attributes, by which it says what it is."""

    def __init__(self, shape: Any) -> None:
        super().__init__("refused")
        self.shape = shape
        self.rows = np.arange(3)
        self.lock = threading.Lock()

    def __str__(self) -> str:
        return f"refused {self.shape}"


class Several(ExceptionGroup[Exception]):
    """A group of the user's own."""


class Outer:
    class Inner(Exception):
        """A nested one."""


def fail(error: BaseException) -> NoReturn:
    raise error


OWN = (Plain, Demanding, Unspeakable, Picky, Outer.Inner, Refused, Several)


def travel(error: BaseException, own: tuple[type, ...] = OWN) -> BaseException:
    """The exception as the other end gets it, over the wire, when its function reaches these."""
    for cls in OWN:
        arrived(cls)
    with pytest.raises(type(error)) as raised:
        fail(error)
    frame = Frame(encode_reply(1, encode_failure(raised.value)))
    message = _usual_message(frame)
    assert message is not None
    return decode_failure(message[2], ResultReader({("", cls.__qualname__): cls for cls in own}))


NOTHING_MORE = (), (), (), (), (), ("", "", "")
"""The end of a failure that says nothing but its type and message."""


def test_a_type_that_is_here_arrives_as_itself() -> None:
    """With its text and its args."""
    rows: list[Exception] = [
        ValueError("text"),
        KeyError("key"),
        KeyError(("a", 1)),
        ZeroDivisionError(),
        TypeError("one", 2, None),
        IndexError("a\nb"),
        FileNotFoundError(2, "No such file or directory", "data.csv"),
        OSError(5, "Input/output error"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        AssertionError(),
        StopIteration(3),
        Plain("text", 1.5),
        Outer.Inner("nested"),
    ]
    for error in rows:
        with row(error):
            found = travel(error)
            assert type(found) is type(error)
            assert str(found) == str(error)
            assert found.args == error.args


def test_what_hangs_on_a_builtin_arrives_with_it() -> None:
    """Programs look at it."""
    missing = travel(FileNotFoundError(2, "No such file or directory", "data.csv"))
    assert isinstance(missing, FileNotFoundError)
    assert (missing.errno, missing.filename) == (2, "data.csv")
    done = travel(StopIteration(3))
    assert isinstance(done, StopIteration)
    assert done.value == 3


def test_an_exception_with_an_init_of_its_own_is_made_without_it() -> None:
    """Its signature is unknown."""
    found = travel(Demanding(code=3, detail="broken"))
    assert type(found) is Demanding
    assert str(found) == "broken (3)"


@pytest.mark.parametrize("error", [Picky, Unspeakable])
def test_an_exception_that_cannot_be_made_again_is_named(error: type[Exception]) -> None:
    """With the name of its type."""
    found = travel(BaseException.__new__(error))
    assert type(found) is RemoteError
    assert found.type_name == f"{__name__}.{error.__name__}"


def test_a_text_that_cannot_be_had_says_so() -> None:
    """The call fails with it, rather than the server."""
    assert "cannot be shown: ZeroDivisionError" in str(travel(Unspeakable()))


@pytest.mark.parametrize("args", [([1],), (object(),), ((),), (b"\xff",), (1 << 70,)])
def test_args_that_are_not_plain_leave_the_text(args: tuple[Any, ...]) -> None:
    """Whatever an exception holds, it arrives in some form."""
    found = travel(Plain(*args))
    assert str(found) == str(Plain(*args))


def test_a_text_that_is_too_long_is_cut() -> None:
    """A megabyte is enough, and `args` that are larger stay behind."""
    assert len(str(travel(Plain("x" * (1 << 21))))) < (1 << 20) + 1000


def test_args_that_are_too_deep_stay_behind() -> None:
    """Even their text cannot be had."""
    deep: tuple[Any, ...] = ()
    for _ in range(100_000):
        deep = (deep,)
    assert "cannot be shown: RecursionError" in str(travel(Plain(deep)))


def test_text_that_is_no_utf_8_arrives() -> None:
    """As in the name of a file that is not."""
    found = travel(Plain("caf\udce9"))
    assert "caf" in str(found)


def test_a_type_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`type_name` tells programs, the text tells people."""
    there = type("Lost", (Exception,), {"__module__": "somewhere.else"})
    found = travel(there("gone"))
    assert type(found) is RemoteError
    assert found.type_name == "somewhere.else.Lost"
    assert str(found) == "somewhere.else.Lost: gone"
    assert "somewhere" not in sys.modules


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
def test_what_ends_a_program_does_not_end_the_callers(kind: type[BaseException]) -> None:
    """A function's `sys.exit()` is a failure of the call."""
    found = travel(kind(3))
    assert type(found) is RemoteError
    assert found.type_name == kind.__name__


def test_attributes_that_are_data_come_along() -> None:
    """Of an exception of the user's own; what is no data stays where it is."""
    found: Any = travel(Refused({"rows": [3, None], "name": "x"}))
    assert type(found) is Refused
    assert found.shape == {"rows": [3, None], "name": "x"}
    assert found.rows.tolist() == [0, 1, 2]
    assert not hasattr(found, "lock")


def test_attributes_are_nothing_but_data() -> None:
    """A class that the server names there is refused."""
    failure = list(encode_failure(Plain("x")))
    cls = dump_literal((Plain.__module__, "Plain", content_id(Plain)))
    state = b"D\0\0\0\1" + dump_literal("how") + b"O" + cls + b"D\0\0\0\0"
    failure[9] = (content_id(Plain), state, b"")
    found = decode_failure(tuple(failure), ResultReader({("", "Plain"): Plain}))
    assert type(found) is RemoteError


@pytest.mark.parametrize("kind", [ExceptionGroup, Several])
def test_a_group_comes_with_its_members(kind: Any) -> None:
    """Each as an exception of its own; groups in groups as well."""
    found: Any = travel(kind("two", [Plain("one"), ExceptionGroup("more", [KeyError("k")])]))
    assert type(found) is kind
    assert found.message == "two"
    first, more = found.exceptions
    assert (type(first), str(first)) == (Plain, "one")
    assert type(more.exceptions[0]) is KeyError


def test_a_type_that_the_function_does_not_reach_is_named() -> None:
    """Also where this process has it: its class may run code of a library."""
    for error, own in (
        (Plain("x"), ()),
        (queue.Empty("x"), OWN),
        (np.linalg.LinAlgError("x"), OWN),
    ):
        found = travel(error, own)
        assert type(found) is RemoteError
        assert found.type_name == f"{type(error).__module__}.{type(error).__name__}"


def test_an_error_of_syntax_names_no_file() -> None:
    """Whatever shows one opens the file that it names, and writes as many blanks as it says."""
    found: Any = travel(SyntaxError("bad", ("secret.txt", 3, 1 << 30, "text", 3, 1 << 30)))
    assert type(found) is SyntaxError
    assert str(found) == "bad (secret.txt, line 3)"
    assert (found.filename, found.offset, found.end_offset) == (None, None, None)


def test_jaxs_errors_arrive_as_themselves() -> None:
    """Programs for `jax.jit` catch them."""
    import jax

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        jax.jit(lambda x: 1 if x else 2)(1)
    assert type(travel(caught.value)) is jax.errors.TracerBoolConversionError
    assert type(travel(jax.errors.JaxRuntimeError("INTERNAL: x"))) is jax.errors.JaxRuntimeError
    promotion = sys.modules["jax._src.dtypes"].TypePromotionError("no")
    assert type(travel(promotion)) is type(promotion)


def test_nothing_is_imported_to_find_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a module nor what a module loads when it is asked for a name."""
    lazy = types.ModuleType("lazy_module")

    def load(name: str) -> NoReturn:
        raise AssertionError(f"{name} was loaded")

    monkeypatch.setattr(lazy, "__getattr__", load, raising=False)
    monkeypatch.setitem(sys.modules, "lazy_module", lazy)
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    for module in ("lazy_module", "wave"):
        found = decode_failure((module, "Error", "text", None, 0.0, "", *NOTHING_MORE))
        assert type(found) is RemoteError
    assert "wave" not in sys.modules


def test_only_exceptions_are_taken() -> None:
    """The other end names a type, and can name anything."""
    rows: list[str] = ["print", "object", "int", "Exception.__init__", "", "."]
    for name in rows:
        with row(name):
            assert (
                type(decode_failure(("builtins", name, "text", None, 0.0, "", *NOTHING_MORE)))
                is RemoteError
            )


def test_our_own_errors_arrive_as_themselves() -> None:
    """Each of the tree."""
    for name in errors.__all__:
        with row(name):
            kind: type[JaxdError] = getattr(errors, name)
            found = travel(kind("what to do next"))
            assert type(found) is kind
            assert str(found) == "what to do next"


def test_a_busy_server_says_when_to_come_again() -> None:
    """Its attribute travels too."""
    found = travel(Busy("no room", 2.5))
    assert isinstance(found, Busy)
    assert found.retry_after_s == 2.5


@pytest.mark.parametrize("error", [Plain("here"), SystemExit(3)], ids=["rebuilt", "named"])
def test_the_users_frames_come_along(error: BaseException) -> None:
    """With those of what led to it, and with what the user has noted."""
    error.__cause__ = ValueError("the reason")
    error.add_note("of the user")
    found = travel(error)
    shown = "".join(traceback.format_exception(found))
    assert "in fail" in shown
    assert "ValueError: the reason" in shown
    assert shown.index("direct cause") < shown.index("in fail")
    assert found.__notes__ == ["of the user"]


def test_an_error_of_the_server_itself_shows_its_whole_traceback_on_demand() -> None:
    """There is none of the user's code in it, and few want to see ours or jax's."""
    failure = list(encode_failure(Plain("broken")))
    failure[6:8] = [(), ()]
    (note,) = decode_failure(tuple(failure), with_jax=True).__notes__
    assert "Raised on the jaxd server" in note
    (note,) = decode_failure(tuple(failure)).__notes__
    assert "JAX_TRACEBACK_FILTERING=off" in note
    assert "File" not in note


def test_an_error_with_a_long_history_is_described() -> None:
    """As Python itself shows it: the chain may be longer than Python recurses."""
    error: BaseException = ValueError(0)
    for number in range(1, 5000):
        later = ValueError(number)
        later.__context__ = error
        error = later
    found = decode_failure(encode_failure(error))
    assert type(found) is ValueError
    assert found.args == (4999,)


def test_an_error_that_cannot_be_described_is_named() -> None:
    """Whoever waits for it is told that much."""

    class Nasty(Exception):
        def __getattr__(self, name: str) -> Any:
            raise SystemExit(3)

    said = str(decode_failure(encode_failure(Nasty("x"))))
    assert "Nasty, which cannot be described: SystemExit" in said


def test_an_error_may_be_its_own_cause() -> None:
    """And errors may lead in a circle."""
    error = Plain("mine")
    error.__cause__ = error
    assert travel(error).__cause__ is None
    error.__cause__ = other = Plain("other")
    other.__cause__ = error
    assert str(travel(error).__cause__) == "other"


def test_a_failure_of_another_process_is_passed_on_as_it_is() -> None:
    """With the traceback of the process that it was raised in."""
    failure = encode_failure(Plain("there"))
    assert encode_failure(ForwardedFailure(failure)) is failure
    assert str(ForwardedFailure(failure)) == "there"


@pytest.mark.parametrize("kind", [ValueError, ArgumentError])
def test_an_error_has_the_id_of_its_call(kind: type[Exception]) -> None:
    """As an attribute, no longer than any that a server makes."""
    found = decode_failure(encode_failure(kind("a"), call="c1"))
    assert (found.call_id, origin_of(found).call) == ("c1", "c1")  # type: ignore[attr-defined]
    found = decode_failure(encode_failure(kind("a"), call="c" * 1000))
    assert len(found.call_id) == len(origin_of(found).call) == 32  # type: ignore[attr-defined]
    without = decode_failure(encode_failure(kind("a")))
    assert getattr(without, "call_id", "") == ""


def test_a_failure_is_told_by_its_exact_type() -> None:
    """Without rebuilding it; a type of that name from elsewhere is another."""
    failure = encode_failure(errors.WorkerReplaced("again"))
    assert is_failure(failure, errors.WorkerReplaced)
    assert not is_failure(failure, errors.ServerDraining)
    assert not is_failure(("elsewhere", *failure[1:]), errors.WorkerReplaced)
