"""What asserts call that pytest has rewritten: enough to fail with a plain message.

Such a function refers to `_pytest.assertion.rewrite` by a global; a server need not have pytest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MAX_TEXT = 240


def _saferepr(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  a user's __repr__ may do anything
        text = f"<{type(value).__name__} whose repr fails: {error!r}>"
    if len(text) > _MAX_TEXT:
        text = f"{text[: _MAX_TEXT // 2]}...{text[-_MAX_TEXT // 2 :]}"
    return text.replace("\n", "\\n")


def _format_assertmsg(value: object) -> str:
    text = value if isinstance(value, str) else _saferepr(value)
    return text.replace("\n", "\n~").replace("%", "%%")


def _should_repr_global_name(value: object) -> bool:
    return not callable(value) and not hasattr(value, "__name__")


def _format_boolop(explanations: Iterable[str], is_or: bool) -> str:
    joined = (" or " if is_or else " and ").join(explanations)
    return f"({joined})".replace("%", "%%")


def _call_reprcompare(
    _: Sequence[str],
    results: Sequence[object],
    explanations: Sequence[str],
    __: Sequence[object],
) -> str:
    for result, explanation in zip(results, explanations, strict=False):
        try:
            failed = not result
        except Exception:  # noqa: BLE001  an array has no truth value
            failed = True
        if failed:
            return explanation
    return explanations[-1]


def _call_assertion_pass(lineno: int, text: str, explanation: str) -> None:
    """No plugin listens on a server."""


def _check_if_assertion_pass_impl() -> bool:
    return False


def _format_explanation(explanation: str) -> str:
    r"""The message: pytest marks with `\n{`, `\n}` and `\n~` how its lines belong together."""
    first, *others = explanation.split("\n")
    lines, open_lines = [first], [0]
    for line in others:
        mark, text = line[:1], line[1:]
        if mark == "{":
            open_lines.append(len(lines))
            lines.append(f" +{'  ' * (len(open_lines) - 1)}where {text}")
        elif mark == "}" and len(open_lines) > 1:
            open_lines.pop()
            lines[open_lines[-1]] += text
        elif mark == "~":
            lines.append(f"{'  ' * len(open_lines)}{text}")
        else:
            lines[-1] += f"\\n{line}"
    return "\n".join(lines)
