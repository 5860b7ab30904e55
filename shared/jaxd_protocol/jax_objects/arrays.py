"""What a jax array holds, as numpy sees it."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxd_protocol.errors import PackingError, TracerError
from jaxd_protocol.jax_objects.names import attribute, is_of_jax, kind_of


class ArrayContent(NamedTuple):
    """The content of a jax array.

    Attributes:
        dtype: name of the element type of `data`.
        shape: shape of `data`; for keys, it is one axis longer than the array's.
        weak: whether the type gives way to others in promotion.
        implementation: of a typed random key, the name of its generator; else None.
        data: a numpy array.
    """

    dtype: str
    shape: tuple[int, ...]
    weak: bool
    implementation: str | None
    data: Any


def array_content(value: Any) -> ArrayContent | None:
    """The content of a jax array; None when the value is none.

    Raises:
        TracerError: when the value is a tracer, which has no content.
        PackingError: when the array was donated or deleted, or lies in part on other machines.
    """
    if not is_of_jax(type(value)):
        return None
    if kind_of(value) == "tracer":
        raise TracerError(
            "a jax tracer cannot be sent: it stands for a value inside of jax.jit, jax.grad or the "
            "like, and a function captures it, or an object holds it that jax does not take apart. "
            "Pass the value as an argument of its own, or make the function or the object outside "
            "of what is traced"
        )
    if not isinstance(value, attribute("jax", "Array")):
        return None
    _check_readable(value)
    weak = bool(getattr(value.aval, "weak_type", False))
    implementation = None
    if kind_of(value.dtype) == "key type":
        implementation = value.dtype._impl.name
        with attribute("jax", "ensure_compile_time_eval")():  # jax may be tracing whoever asks
            value = attribute("jax", "random").key_data(value)
    import numpy

    data = numpy.asarray(value)
    return ArrayContent(data.dtype.name, data.shape, weak, implementation, data)


def _check_readable(array: Any) -> None:
    if array.is_deleted():
        raise PackingError(
            "a function captures a jax array that has been deleted or donated: "
            "capture one that still holds its values"
        )
    if not array.is_fully_addressable:
        raise PackingError(
            "a function captures a jax array that lies in part on other machines: "
            "pass it as an argument, or capture a local copy"
        )
