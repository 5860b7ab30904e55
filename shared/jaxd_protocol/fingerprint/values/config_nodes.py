"""What is private in omegaconf, ml_collections and fiddle, and how parts of what they make count.

A node of omegaconf refers to the configuration around it, and what it holds may be text that says
how to work its value out: another node, a variable of the environment, a function. A field of
ml_collections may be a reference to another. Neither counts or travels; the value does.
"""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from jaxd_protocol.fingerprint.canonical_bytes import is_same
from jaxd_protocol.fingerprint.data_model import Step
from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.walk import Walk

_FLAGS: Final = ("allow_objects", "readonly", "struct")
"""Settings that a node has from those around it, where it has none of its own."""

_UNRESOLVED: Final = "${this_could_not_be_resolved_by_the_caller:}"
"""In place of what only fails when it is read: it fails on a server, too."""


def is_node(value: Any) -> bool:
    """Whether it is a node of omegaconf."""
    node = getattr(sys.modules.get("omegaconf.base"), "Node", None)
    return node is not None and isinstance(value, node)


def is_container(value: Any) -> bool:
    """Whether a node is a part of a configuration and no single value."""
    return hasattr(value, "_content")


def is_reference(value: Any) -> bool:
    """Whether it is a reference to a field of a configuration of ml_collections."""
    home = sys.modules.get("ml_collections.config_dict.config_dict")
    return type(value) is getattr(home, "FieldReference", None)


def guard_resolved(walk: Walk, resolve: Callable[[], Any], value: Any) -> None:
    """Notices that something has another value, which is worked out again each time.

    One that is another each time, such as a random number, counts as it was found.
    """
    now = resolve()
    if now is value:
        walk.guards.answer(resolve, value)
    elif is_same(_plain(now), _plain(value)):
        walk.guards.answer(lambda: _plain(resolve()), _plain(value))
    else:
        walk.guards.incomplete()


def _plain(value: Any) -> Any:
    if not is_node(value):
        return value
    to_container: Any = vars(sys.modules["omegaconf"])["OmegaConf"].to_container
    return to_container(value, resolve=True) if is_container(value) else value._value()


def resolved(value: Any) -> Any:
    """What a node or reference holds; `MISSING` where that cannot be worked out.

    Of a node without interpolation it is the node itself.
    """
    try:
        return value.get() if is_reference(value) else value._dereference_node()
    except Exception:  # noqa: BLE001  whatever a function of the user's raises
        return MISSING


def guard_reference(walk: Walk, config: Any, step: Step, value: Any) -> None:
    """A field of ml_collections holds its value, or a reference to it."""
    fields = vars(config)["_fields"]
    content = fields.get(step[1], MISSING)
    walk.guards.item(vars(config), "_fields", fields)
    walk.guards.item(fields, step[1], content)
    if content is not value:
        walk.guards.answer(lambda: config.get(step[1], MISSING), value)


def guard_argument(walk: Walk, config: Any, step: Step, value: Any) -> None:
    """An argument of fiddle is given, or the default of the function that is configured."""
    given = vars(config)["__arguments__"]
    walk.guards.item(vars(config), "__arguments__", given)
    walk.guards.item(given, step[1], given.get(step[1], MISSING))
    if given.get(step[1], MISSING) is not value:
        walk.guards.answer(lambda: getattr(config, step[1]), value)


def guard_node(walk: Walk, config: Any, step: Step, value: Any) -> None:
    """A field of omegaconf holds a node, and that a value, or how to work it out."""
    content = vars(config)["_content"]
    walk.guards.item(vars(config), "_content", content)
    if isinstance(content, dict):
        node = content.get(step[1], MISSING)
        walk.guards.item(content, step[1], node)
    else:
        node = content[step[1]] if isinstance(content, list) and value is not MISSING else MISSING
        walk.guards.sequence(content)
    inner = getattr(node, "__dict__", {})
    if inner.get("_val", MISSING) is value:
        walk.guards.item(inner, "_val", value)
    elif node is not value:
        guard_resolved(walk, lambda: config.get(step[1], MISSING), value)


def emit_node(walk: Walk, node: Any) -> bool:
    """Appends a node or reference as what it holds; False for any other object."""
    if is_reference(node):
        content = resolved(node)
        if content is MISSING:
            return False
        guard_resolved(walk, lambda: resolved(node), content)
        walk.emit(content)
        return True
    if not is_node(node):
        return False
    content = resolved(node)
    if content is not node and is_container(content):
        for name in vars(node).keys() & {"_content", "_val"}:
            walk.guards.item(vars(node), name, vars(node)[name])
        guard_resolved(walk, lambda: resolved(node), content)
        walk.emit(content)
    elif is_container(node):
        walk.numbered(node, _emit_container)
    else:
        walk.nested(node, _emit_value)
    return True


def _emit_container(walk: Walk, node: Any) -> None:
    _emit_metadata(walk, node)
    content = vars(node)["_content"]
    walk.guards.item(vars(node), "_content", content)
    walk.emit(content)


def _emit_value(walk: Walk, node: Any) -> None:
    _emit_metadata(walk, node)
    raw = vars(node)["_val"]
    walk.guards.item(vars(node), "_val", raw)
    content = resolved(node)
    if content is MISSING:
        walk.tag("unresolved")
        return
    if content is not node:
        guard_resolved(walk, lambda: _value_of(resolved(node)), _value_of(content))
    walk.emit(_value_of(content))


def _value_of(content: Any) -> Any:
    return MISSING if content is MISSING else content._value()


def _emit_metadata(walk: Walk, node: Any) -> None:
    walk.tag("config node")
    walk.text(type(node).__name__)
    walk.guards.instance(node)
    data = node._metadata
    for name in ("ref_type", "object_type", "key_type", "element_type", "optional"):
        content = getattr(data, name, None)
        known = content is None or isinstance(content, type | bool)
        walk.emit_labelled("", content if known else repr(content))
    for name, setting in sorted(settings_of(node).items()):
        walk.text(name)
        walk.emit_labelled("", setting)


def settings_of(node: Any) -> dict[str, Any]:
    """Of a node: its own flags, and those that it has from around it."""
    around = {name: node._get_flag(name) for name in _FLAGS}
    found = around | (node._metadata.flags or {})
    return {name: each for name, each in found.items() if each is not None}


def state_of(node: Any) -> dict[str, Any]:
    """The state of a node without what is around it, for its `__setstate__`."""
    content = resolved(node)
    state: dict[str, Any] = node.__getstate__()
    metadata = state["_metadata"] = copy.copy(state["_metadata"])
    metadata.flags = settings_of(node)
    metadata.resolver_cache = defaultdict(dict)
    state["_parent"] = None
    if "_val" in state and content is not node:
        state["_val"] = _UNRESOLVED if content is MISSING else content._value()
    return state
