"""Arrays, by their whole content: dtype, shape and bytes."""

from __future__ import annotations

import sys
from collections.abc import Set as AbstractSet
from typing import Any, Final

from jaxd_protocol.base.process import IdentityMemo
from jaxd_protocol.fingerprint.canonical_bytes import digest
from jaxd_protocol.fingerprint.guards import ARRAY_LIMIT
from jaxd_protocol.fingerprint.values import modules
from jaxd_protocol.fingerprint.values.reductions import (
    guard_own_content,
    is_own_array,
    is_own_scalar,
    own_state,
)
from jaxd_protocol.fingerprint.walk import Walk
from jaxd_protocol.jax_objects.decomposition import array_content
from jaxd_protocol.packages.importable import name_within

_jax_contents: Final = IdentityMemo[bytes]()
"""Digests of jax arrays: they never change, so each is hashed once."""


def emit_array(walk: Walk, value: Any) -> bool:
    """Appends an array, or something else of numpy's; False when it is neither.

    What stands for an array, as arrays on a server do, arrives there as the array. One of jax is
    its content in a process without jax.
    """
    stands_for = getattr(type(value), "__stands_for__", None)
    given = value
    if stands_for is not None:
        walk.guards.instance(value)
        value = stands_for(value)
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return False
    if type(value) in (numpy.ndarray, numpy.memmap):
        walk.reach.aliased.append(given)
        _numpy_array(walk, numpy, value)
    elif is_own_array(numpy, value):
        walk.numbered(value, _own_array)
    elif isinstance(value, numpy.generic) and is_own_scalar(value):
        walk.nested(value, _own_scalar)
    elif isinstance(value, numpy.generic):
        walk.tag("scalar")
        _emit_dtype(walk, value.dtype)
        walk.write(_content(numpy, value))
        walk.part("value", walk.label, value.tobytes(), repr(value))
    elif isinstance(value, numpy.dtype):
        walk.tag("dtype")
        _emit_dtype(walk, value)
    elif isinstance(value, numpy.ufunc) and _universal_function(walk, numpy, value):
        return True
    elif _jax_array(walk, numpy, value, given):
        walk.reach.aliased.append(given)
    else:
        return False
    return True


def _emit_dtype(walk: Walk, dtype: Any) -> None:
    """By its name, and what was attached to it or to the dtype of a field."""
    plain = dtype.names is None and dtype.kind != "V"
    walk.text(str(dtype.str if plain else repr(dtype)))
    if dtype.metadata:
        walk.tag("metadata")
        walk.emit(dict(dtype.metadata))
    inner = [dtype.fields[name][0] for name in dtype.names or ()]
    for each in (*inner, *(dtype.subdtype or ())[:1]):
        _emit_dtype(walk, each)


def memory_of(numpy: Any, array: Any) -> tuple[tuple[int, ...], Any]:
    """The axes of an array from the slowest in its memory to the fastest, and its bytes so.

    As numpy's order "K" takes them, for code that asks. No axes: the order is that of C, as that
    of an array which is the same along an axis. Axes of one entry, which are nowhere in memory,
    come last.
    """
    order = () if array.flags.c_contiguous else _axes_in_memory(array)
    whole = numpy.ascontiguousarray(array.transpose(order) if order else array)
    return order, whole.reshape(-1).view(numpy.ndarray).view(numpy.uint8)


def _axes_in_memory(array: Any) -> tuple[int, ...]:
    steps = {axis: abs(array.strides[axis]) for axis in range(array.ndim) if array.shape[axis] > 1}
    found = sorted(steps, key=lambda axis: -steps[axis])
    if found == [*steps] or 0 in steps.values():
        return ()
    return (*found, *(axis for axis in range(array.ndim) if axis not in steps))


def _content(numpy: Any, array: Any) -> bytes:
    flat = numpy.ascontiguousarray(array).reshape(-1).view("u1")
    return digest(flat.data)


def _numpy_array(walk: Walk, numpy: Any, array: Any) -> None:
    walk.tag("array")
    _emit_dtype(walk, array.dtype)
    walk.text(str(array.shape))
    if array.dtype.hasobject:
        walk.guards.answer(
            lambda: [id(each) for each in array.flat], [id(each) for each in array.flat]
        )
        walk.nested(array.ravel().tolist(), _objects)
        return
    axes, memory = memory_of(numpy, array)
    content = digest(memory.data)
    walk.text(str(axes))
    walk.write(content)
    walk.part("array", walk.label, content, _summary(array.dtype, array.shape))
    if _may_change(array):
        walk.guards.array(array)


def _may_change(array: Any) -> bool:
    """Whether guards are to look at an array: its memory may be written to, also by another name.

    One that is read-only and owns its memory can be made writeable for a moment. A large one is
    not looked at for that: in a static argument it would be hashed for each call.
    """
    return bool(array.flags.writeable or array.base is not None or array.nbytes <= ARRAY_LIMIT)


def _own_array(walk: Walk, array: Any) -> None:
    """An array of a subclass, with the attributes that it has by itself."""
    numpy = sys.modules["numpy"]
    walk.tag("own array")
    walk.emit_labelled("", type(array))
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is None or not isinstance(array, masked):
        plain = array.view(numpy.ndarray)
        is_sent_so = plain.flags.forc or array.dtype.hasobject
        _numpy_array(walk, numpy, plain if is_sent_so else numpy.ascontiguousarray(plain))
        if not array.dtype.hasobject:
            walk.guards.array(array)
        _own_attributes(walk, array)
        return
    walk.guards.array(array)
    walk.text(int(array.flags.fnc))
    for name in ("_data", "_mask", "fill_value"):
        walk.emit_child(f".{name}", numpy.asarray(getattr(array, name), order="C"))
    _own_attributes(walk, array, _MASKED_ATTRIBUTES)


_MASKED_ATTRIBUTES: Final = frozenset(
    {"_baseclass", "_basedict", "_fill_value", "_isfield", "_mask", "_optinfo", "_sharedmask"}
)
"""Attributes of a masked array that follow from its content, or change when it is read."""


def _own_scalar(walk: Walk, value: Any) -> None:
    """A number of a subclass of numpy's."""
    walk.tag("own scalar")
    walk.emit_labelled("", type(value))
    walk.emit(value.dtype.type(value))
    _own_attributes(walk, value)


def _own_attributes(walk: Walk, value: Any, known: AbstractSet[str] = frozenset()) -> None:
    walk.guards.instance(value)
    guard_own_content(walk.guards, value)
    state = own_state(value)
    attributes, slots = state if type(state) is tuple else (state, {})
    found = {**(attributes or {}), **slots}
    counted = {name: content for name, content in found.items() if name not in known}
    walk.text(len(counted))
    for name, content in counted.items():
        walk.text(name)
        walk.emit_child(f".{name}", content)


def _universal_function(walk: Walk, numpy: Any, value: Any) -> bool:
    """Appends a ufunc of a library; which does not name its library."""
    own = getattr(numpy, value.__name__, None) is value
    name = ("numpy", value.__name__) if own else name_within("scipy", value)
    if name is not None:
        walk.reach.installed.append(value)
        modules.emit_reference(walk, *name)
    return name is not None


def _objects(walk: Walk, items: list[Any]) -> None:
    walk.text(len(items))
    for index, item in enumerate(items):
        walk.emit_child(f".flat[{index}]", item)


def _summary(dtype: Any, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _jax_array(walk: Walk, numpy: Any, value: Any, given: Any) -> bool:
    data = _jax_contents.get(given)
    if data is None:
        found = array_content(value)
        if found is None:
            return False
        dtype, shape, weak, impl, array = found
        head = repr((dtype, tuple(shape), weak, impl)).encode()
        data = _jax_contents.put(given, head + _content(numpy, array))
    walk.tag("jax array")
    walk.text(len(data))
    walk.write(data)
    walk.part("array", walk.label, data, _summary(given.dtype, given.shape))
    return True
