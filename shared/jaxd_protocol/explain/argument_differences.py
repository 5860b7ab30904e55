"""What differs between the arguments of two calls, in sentences that a person can act on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from jaxd_protocol.explain.argument_shapes import Argument, ArgumentShape
from jaxd_protocol.explain.key_differences import Difference

_MAX_PER_ARGUMENT: Final = 3
_MAX_STEPS: Final = 3


def argument_differences(
    before: Mapping[str, Argument], after: Mapping[str, Argument]
) -> tuple[Difference, ...]:
    """What changed between two calls; nothing when jax would take both for the same."""
    found: list[Difference] = []
    for name in {**after, **before}:
        was, now = before.get(name), after.get(name)
        if was is None and now is not None:
            text = f"argument {name}: now given ({now.form})"
            found.append(Difference("argument", name, "added", after=str(now.form), text=text))
        elif was is not None and now is None:
            text = f"argument {name}: no longer given (was {was.form})"
            found.append(Difference("argument", name, "removed", str(was.form), text=text))
        elif was is not None and now is not None:
            found += _argument_difference(name, was, now)
    return tuple(found)


def _argument_difference(name: str, was: Argument, now: Argument) -> list[Difference]:
    found = list(_shape_differences(name, was.form, now.form))
    if not found and was.by_name != now.by_name:
        before, after = (
            "by name" if argument.by_name else "by position" for argument in (was, now)
        )
        return [_changed(name, before, after, f"given {before} → given {after}")]
    if len(found) <= _MAX_PER_ARGUMENT:
        return found
    first = found[0].text.removeprefix("argument ")
    return [_changed(name, "", "", f"{len(found)} leaves changed, such as {first}")]


def _shape_differences(path: str, was: ArgumentShape, now: ArgumentShape) -> Iterator[Difference]:
    if was == now:
        return
    if _is_container(was) and was.kind == now.kind:
        old, new = dict(was.children), dict(now.children)
        if list(old) == list(new):
            found = [
                each
                for step in new
                for each in _shape_differences(path + step, old[step], new[step])
            ]
            yield from found or [_value_difference(path, was, now, True, "object")]
            return
    if was.children or now.children or _is_container(was) or _is_container(now):
        yield _changed(path, str(was), str(now), f"structure changed ({_structure(was, now)})")
    else:
        yield _value_difference(path, was, now, "static" in (was.kind, now.kind), _noun(now))


def _value_difference(
    path: str, was: ArgumentShape, now: ArgumentShape, is_static: bool, noun: str
) -> Difference:
    values = f"{was.text} → {now.text}" if was.text != now.text else f"another {noun}"
    return _changed(path, was.text, now.text, values, " (static)" if is_static else "")


def _is_container(form: ArgumentShape) -> bool:
    return form.kind not in ("leaf", "static")


def _noun(form: ArgumentShape) -> str:
    return (
        "object" if form.text.startswith("an object") else f"value, which begins with {form.text}"
    )


def _structure(was: ArgumentShape, now: ArgumentShape) -> str:
    """What is new and what is gone where the keys differ, else what either is."""
    old, new = dict(was.children), dict(now.children)
    come = [step for step in new if step not in old]
    gone = [step for step in old if step not in new]
    if was.kind != now.kind or was.kind in ("list", "tuple") or not (come or gone):
        return f"{was} → {now}"
    sides = ((come, "new"), (gone, "gone"))
    return ", ".join(f"{word}: {_steps(steps)}" for steps, word in sides if steps)


def _steps(steps: list[str]) -> str:
    more = f" and {len(steps) - _MAX_STEPS} more" if len(steps) > _MAX_STEPS else ""
    return ", ".join(steps[:_MAX_STEPS]) + more


def _changed(name: str, before: str, after: str, what: str, note: str = "") -> Difference:
    text = f"argument {name}{note}: {what}"
    return Difference("argument", name, before=before, after=after, text=text)
