"""What may be asked twice."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd.twice import twice
from jaxd_protocol.errors import ConnectionLost


def asked(*answers: Any) -> tuple[Any, int]:
    """What comes of a question that is answered so, and how many answers are left."""
    left = list(answers)

    def ask() -> Any:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    try:
        return twice(ask), len(left)
    except Exception as error:  # noqa: BLE001  it is what came of it
        return error, len(left)


LOST = ConnectionLost("gone")


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ((1, 2), (1, 1)),
        ((LOST, 2, 3), (2, 1)),
        ((LOST, LOST, 3), (LOST, 1)),
    ],
)
def test_a_question_is_asked_again_once(answers: Any, found: Any) -> None:
    """Only when its connection was lost."""
    assert asked(*answers) == found


def test_other_failures_are_answers() -> None:
    """Nobody asks again."""
    error = ValueError("no")
    assert asked(error, 2) == (error, 1)
