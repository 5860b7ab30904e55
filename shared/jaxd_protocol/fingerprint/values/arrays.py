"""Arrays, by their whole content: dtype, shape and bytes."""

from __future__ import annotations

import sys
from typing import Any, Final

from jaxd_protocol.base.process import IdentityMemo
from jaxd_protocol.fingerprint.canonical_bytes import digest
from jaxd_protocol.fingerprint.values import modules
from jaxd_protocol.fingerprint.walk import Walk
from jaxd_protocol.jax_objects.decomposition import array_content
from jaxd_protocol.packages.importable import name_within

_jax_contents: Final = IdentityMemo[bytes]()
"""Digests of jax arrays: they never change, so each is hashed once."""


def emit_array(walk: Walk, value: Any) -> bool:
    """Appends an array, or something else of numpy's; False when it is neither."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return False
    if type(value) in (numpy.ndarray, numpy.memmap):
        _numpy_array(walk, numpy, value)
    elif type(value) is getattr(sys.modules.get("numpy.ma"), "MaskedArray", None):
        _masked(walk, numpy, value)
    elif isinstance(value, numpy.generic):
        walk.tag("scalar")
        walk.text(_dtype(value.dtype))
        walk.write(_content(numpy, value))
        walk.part("value", walk.label, value.tobytes(), repr(value))
    elif isinstance(value, numpy.dtype):
        walk.tag("dtype")
        walk.text(_dtype(value))
    elif isinstance(value, numpy.ufunc) and _universal_function(walk, numpy, value):
        return True
    else:
        return _jax_array(walk, numpy, value)
    return True


def _dtype(dtype: Any) -> str:
    plain = dtype.names is None and dtype.kind != "V"
    return str(dtype.str if plain else repr(dtype))


def _content(numpy: Any, array: Any) -> bytes:
    flat = numpy.ascontiguousarray(array).reshape(-1).view("u1")
    return digest(flat.data)


def _numpy_array(walk: Walk, numpy: Any, array: Any) -> None:
    walk.tag("array")
    walk.text(_dtype(array.dtype))
    walk.text(str(array.shape))
    if array.dtype.hasobject:
        walk.guards.answer(
            lambda: [id(each) for each in array.flat], [id(each) for each in array.flat]
        )
        walk.nested(array.ravel().tolist(), _objects)
        return
    content = _content(numpy, array)
    walk.write(content)
    walk.part("array", walk.label, content, _summary(array.dtype, array.shape))
    if array.flags.writeable or array.base is not None:  # what it is a view of may be written to
        walk.guards.array(array)


def _masked(walk: Walk, numpy: Any, array: Any) -> None:
    """A masked array: pickle gives back another form of its fill value."""
    walk.tag("masked array")
    walk.guards.array(array)
    for name in ("_data", "_mask", "fill_value"):
        walk.emit_child(f".{name}", numpy.asarray(getattr(array, name)))


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


def _jax_array(walk: Walk, numpy: Any, value: Any) -> bool:
    data = _jax_contents.get(value)
    if data is None:
        found = array_content(value)
        if found is None:
            return False
        dtype, shape, weak, impl, array = found
        head = repr((dtype, tuple(shape), weak, impl)).encode()
        data = _jax_contents.put(value, head + _content(numpy, array))
    walk.tag("jax array")
    walk.text(len(data))
    walk.write(data)
    walk.part("array", walk.label, data, _summary(value.dtype, value.shape))
    return True
