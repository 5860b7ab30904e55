"""`jax.jit` objects: the options they were made with, and how to make them again.

Private to jax: the attributes `_fun` and `_jit_info` of a jitted function, and the fields of the
latter. `__wrapped__` is no substitute for `_fun`: `functools.wraps(g)(jax.jit(f))` makes it `g`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxd_protocol.jax_objects.names import COPIED_ATTRIBUTES, attribute

_PLAIN_OPTIONS = (
    "static_argnums",
    "static_argnames",
    "donate_argnums",
    "donate_argnames",
    "keep_unused",
    "device",
    "backend",
)
# What `functools.wraps` and jax put on every jitted function; the rest is the user's.
_STANDARD_ATTRIBUTES = COPIED_ATTRIBUTES | {"__wrapped__", "_fun", "_jit_info"}


def jit_parts(jitted: Any) -> dict[str, Any]:
    """All that decides what a jitted function does, by name: options, shardings, the function."""
    info = jitted._jit_info
    parts = {name: getattr(info, name) for name in _PLAIN_OPTIONS}
    parts["inline"] = _plain_inline(info.inline)
    parts["compiler_options"] = tuple(sorted(dict(info.compiler_options_kvs).items()))
    for end in ("in", "out"):
        parts |= _sharding_parts(info, end)
    parts["fun"] = jitted._fun
    extras = jit_extras(jitted)
    return parts | {f"attribute {name}": extras[name] for name in sorted(extras)}


def jit_options(jitted: Any) -> dict[str, Any]:
    """The keyword arguments with which `jax.jit` makes an equal object from the same function."""
    info = jitted._jit_info
    options = {name: getattr(info, name) for name in _PLAIN_OPTIONS}
    options = {name: value for name, value in options.items() if value not in (None, False)}
    if _plain_inline(info.inline) not in (False, "auto"):
        options["inline"] = info.inline
    if info.compiler_options_kvs:
        options["compiler_options"] = dict(info.compiler_options_kvs)
    for end in ("in", "out"):
        if _is_specified(info, end):
            options[f"{end}_shardings"] = _sharding_tree(info, end)
    return options


def jit_extras(jitted: Any) -> dict[str, Any]:
    """Attributes that were set on the jitted function afterwards."""
    own = vars(jitted).keys() - _STANDARD_ATTRIBUTES | own_names(jitted, jitted._fun)
    return {name: value for name, value in vars(jitted).items() if name in own}


def own_names(value: Any, function: Any) -> set[str]:
    """`__name__`, where what is around a function has another one than that; else nothing."""
    shown, known = vars(value), getattr(function, "__name__", None)
    is_renamed = isinstance(known, str) and shown.get("__name__", known) != known
    return {"__name__"} if is_renamed else set()


def make_jit(fun: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A new jitted function; runs where one arrives."""
    import jax

    return jax.jit(fun, **options)


def _plain_inline(inline: Any) -> Any:
    # An enum since jax 0.11, where the default has a name of its own.
    return inline if isinstance(inline, bool) else inline.value


def _sharding_parts(info: Any, end: str) -> dict[str, Any]:
    if not _is_specified(info, end):
        return {f"{end}_shardings": None}
    shardings, layouts = _leaves(info, end)
    parts = {f"{end}_shardings": getattr(info, f"{end}_shardings_treedef")}
    parts |= {f"{end}_sharding {i}": leaf for i, leaf in enumerate(shardings)}
    return parts | {f"{end}_layout {i}": leaf for i, leaf in enumerate(layouts)}


def _is_specified(info: Any, end: str) -> bool:
    return any(leaf is not None for leaves in _leaves(info, end) for leaf in leaves)


def _leaves(info: Any, end: str) -> tuple[list[Any], list[Any]]:
    unspecified = attribute("jax._src.sharding_impls", "UNSPECIFIED")
    shardings = getattr(info, f"{end}_shardings_leaves")
    return (
        [None if leaf is unspecified else leaf for leaf in shardings],
        list(getattr(info, f"{end}_layouts_leaves")),
    )


def _sharding_tree(info: Any, end: str) -> Any:
    shardings, layouts = _leaves(info, end)
    merged = shardings
    if any(layout is not None for layout in layouts):
        form = attribute("jax._src.layout", "Format")
        merged = [
            sharding if layout is None else form(layout, sharding)
            for sharding, layout in zip(shardings, layouts, strict=True)
        ]
    return getattr(info, f"{end}_shardings_treedef").unflatten(merged)
