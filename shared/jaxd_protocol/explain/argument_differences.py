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
            found.append(_difference(name, "added", "", str(now.form), text))
        elif was is not None and now is None:
            text = f"argument {name}: no longer given (was {was.form})"
            found.append(_difference(name, "removed", str(was.form), "", text))
        elif was is not None and now is not None:
            found += _argument_difference(name, was, now)
    return tuple(found)


def _argument_difference(name: str, was: Argument, now: Argument) -> list[Difference]:
    found = list(_shape_differences(name, was.form, now.form))
    if not found and was.by_name != now.by_name:
        how = ["by name" if argument.by_name else "by position" for argument in (was, now)]
        text = f"argument {name}: given {how[0]} → given {how[1]}"
        return [_difference(name, "changed", how[0], how[1], text)]
    if len(found) <= _MAX_PER_ARGUMENT:
        return found
    first = found[0].text.removeprefix("argument ")
    text = f"argument {name}: {len(found)} leaves changed, such as {first}"
    return [_difference(name, "changed", "", "", text)]


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
            yield from found or [_static_differences(path, was, now)]
            return
    if was.children or now.children or _is_container(was) or _is_container(now):
        text = f"argument {path}: structure changed ({_structure(was, now)})"
        yield _difference(path, "changed", str(was), str(now), text)
        return
    static = " (static)" if "static" in (was.kind, now.kind) else ""
    values = f"{was.text} → {now.text}" if was.text != now.text else f"another {_noun(now)}"
    text = f"argument {path}{static}: {values}"
    yield _difference(path, "changed", was.text, now.text, text)


def _static_differences(path: str, was: ArgumentShape, now: ArgumentShape) -> Difference:
    values = f"{was.text} → {now.text}" if was.text != now.text else "another object"
    return _difference(path, "changed", was.text, now.text, f"argument {path} (static): {values}")


def _is_container(form: ArgumentShape) -> bool:
    return form.kind not in ("leaf", "static")


def _noun(form: ArgumentShape) -> str:
    return (
        "object" if form.text.startswith("an object") else f"value, which begins with {form.text}"
    )


def _structure(was: ArgumentShape, now: ArgumentShape) -> str:
    """What is new and what is gone where the keys differ, else what either is."""
    old, new = [step for step, _ in was.children], [step for step, _ in now.children]
    come = [step for step in new if step not in old]
    gone = [step for step in old if step not in new]
    if was.kind != now.kind or was.kind in ("list", "tuple") or not (come or gone):
        return f"{was} → {now}"
    sides = ((come, "new"), (gone, "gone"))
    return ", ".join(f"{word}: {_steps(steps)}" for steps, word in sides if steps)


def _steps(steps: list[str]) -> str:
    more = f" and {len(steps) - _MAX_STEPS} more" if len(steps) > _MAX_STEPS else ""
    return ", ".join(steps[:_MAX_STEPS]) + more


def _difference(name: str, change: str, before: str, after: str, text: str) -> Difference:
    return Difference("argument", name, change, before, after, "", text)
