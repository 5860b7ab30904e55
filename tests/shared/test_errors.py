from __future__ import annotations

import builtins
import pickle
from pathlib import Path

from jaxd_protocol import errors
from jaxd_protocol.errors import Busy, JaxdError, RemoteError
from tests.ids import row

ROOT = Path(__file__).resolve().parent.parent.parent
WARNINGS = {name for name in errors.__all__ if issubclass(getattr(errors, name), Warning)}
KINDS: list[type[JaxdError]] = [
    getattr(errors, name) for name in errors.__all__ if name not in WARNINGS
]


def test_every_error_of_the_module_is_public() -> None:
    """`rebuild_failure` finds them by name."""
    defined = {
        name for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, JaxdError)
    }  # fmt: skip
    assert defined == set(errors.__all__) - WARNINGS
    assert all(issubclass(getattr(errors, name), UserWarning) for name in WARNINGS)


def test_an_error_says_whose_fault_it_is_and_crosses_to_another_process() -> None:
    """And can be caught as one of Python's own by code that does not know us."""
    for kind in KINDS:
        with row(kind):
            assert kind.blame in ("caller", "function", "server", "network")
            assert isinstance(kind.may_repeat, bool)
            assert kind.__doc__
            own = [base for base in kind.__mro__ if hasattr(builtins, base.__name__)]
            assert kind is JaxdError or own[0] is not Exception
            error = pickle.loads(pickle.dumps(kind("what to do next")))
            assert type(error) is kind
            assert str(error) == "what to do next"


def test_what_an_error_knows_beside_its_message() -> None:
    """When to come again, and the type that is not here."""
    assert Busy("full").retry_after_s == 1.0
    assert Busy("full", 3).retry_after_s == 3
    assert RemoteError("gone", "m.Lost").type_name == "m.Lost"


def test_the_page_on_errors_has_them_all() -> None:
    """Each with who has to act, and whether to repeat."""
    lines = (ROOT / "docs" / "errors.md").read_text().splitlines()
    rows = [line.split(" | ")[:3] for line in lines if line.startswith("| `")]
    told = {row[0].strip("|` "): (row[1], row[2] == "yes") for row in rows}
    assert told == {
        kind.__name__: (kind.blame, kind.may_repeat) for kind in KINDS if kind is not JaxdError
    }


def test_nobody_repeats_what_is_the_callers_own_mistake() -> None:
    """Except where time or room decide."""
    repeatable = {kind.__name__ for kind in KINDS if kind.blame == "caller" and kind.may_repeat}
    assert repeatable == {"DeadlineExceeded"}
