"""Arrays: dtype, shape and bytes. numpy's own reduction names modules that numpy 1 lacks."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from jaxd_protocol.fingerprint.values.arrays import memory_of
from jaxd_protocol.fingerprint.values.reductions import (
    is_own_array,
    is_own_scalar,
    numpy_base,
    own_state,
    set_own_state,
)


def reduce_array(value: Any) -> Any:
    """A reduce tuple for an array or scalar of numpy or jax; `NotImplemented` for others.

    Raises:
        TracerError: when it is a tracer, which has no content.
        PackingError: when it is a jax array whose content this process does not have.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return NotImplemented
    stands_for = getattr(type(value), "__stands_for__", None)
    if stands_for is not None:
        return _jax_array(numpy, stands_for(value))
    if type(value) in (numpy.ndarray, numpy.memmap):
        return _numpy_array(numpy, value)
    if is_own_array(numpy, value):
        make, arguments, content = value.__reduce__()
        return make, arguments, (content, own_state(value)), None, None, fill_array
    if isinstance(value, numpy.generic):
        return _scalar(value)
    return _jax_array(numpy, value)


def _scalar(value: Any) -> Any:
    if is_own_scalar(value):
        plain = value.dtype.type(value)
        return make_own_scalar, (type(value), plain), own_state(value), None, None, set_own_state
    if type(value).__module__ == "numpy" and not value.dtype.hasobject:
        return make_scalar, (value.dtype, value.tobytes())
    return NotImplemented


def _numpy_array(numpy: Any, array: Any) -> Any:
    if array.dtype.hasobject:
        items = array.ravel().tolist()
        return make_object_array, (array.dtype, array.shape), items, None, None, _fill_objects
    return make_array, (array.dtype, array.shape, *_memory(numpy, array))


def _memory(numpy: Any, array: Any) -> tuple[Any, pickle.PickleBuffer]:
    order, memory = memory_of(numpy, array)
    return order, pickle.PickleBuffer(memory)


def make_array(dtype: Any, shape: tuple[int, ...], order: Any, data: Any) -> Any:
    """A numpy array over these bytes.

    Args:
        dtype: its dtype.
        shape: its shape.
        order: its axes as they lie in memory, see `memory_of`; text where an older jaxd packed it.
        data: the bytes.
    """
    import numpy

    flat: Any = numpy.frombuffer(data, dtype)
    if not order or isinstance(order, str):
        return flat.reshape(shape, order=order or "C")
    return flat.reshape([shape[axis] for axis in order]).transpose(numpy.argsort(order))


def make_object_array(dtype: Any, shape: tuple[int, ...]) -> Any:
    """A numpy array for Python objects, not filled yet."""
    import numpy

    return numpy.empty(shape, dtype)


def _fill_objects(array: Any, items: list[Any]) -> None:
    flat = array.reshape(-1)
    for index, item in enumerate(items):
        flat[index] = item


def make_scalar(dtype: Any, data: bytes) -> Any:
    """A numpy scalar."""
    import numpy

    return numpy.frombuffer(data, dtype)[0]


def fill_array(array: Any, state: tuple[Any, Any]) -> None:
    """Completes an array of a class of its own, with the attributes that it had."""
    content, own = state
    numpy_base(type(array)).__setstate__(array, content)
    set_own_state(array, own)


def make_own_scalar(cls: Any, plain: Any) -> Any:
    """A number of a subclass of numpy's, without its attributes."""
    return type(plain).__new__(cls, plain)


def _jax_array(numpy: Any, value: Any) -> Any:
    from jaxd_protocol.jax_objects.decomposition import array_content

    found = array_content(value)
    if found is None:
        return NotImplemented
    _, _, weak, implementation, data = found
    memory = (data.dtype, data.shape, *_memory(numpy, data))
    return make_jax_array, (memory, weak, implementation)


def make_jax_array(memory: tuple[Any, ...], weak: bool, implementation: str | None) -> Any:
    """A jax array of exactly this dtype, independent of jax's settings in this thread."""
    import jax

    data = make_array(*memory)
    if implementation is not None:
        return jax.random.wrap_key_data(data, impl=implementation)
    with jax.enable_x64(True):
        array = jax.device_put(data)
    if weak:
        weakly = array.aval.update(weak_type=True)
        return type(array)(weakly, array.sharding, [array], committed=False)
    return array
