"""Encodes argument specs: anything with a shape and a dtype, without data."""

from __future__ import annotations

import itertools
import operator
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd.interop.jax_runtime import encode_jax, loaded_jax, to_jax, to_jax_keys
from jaxd.interop.lazy_array import LazyArray
from jaxd.interop.remote_array import RemoteArray
from jaxd.request.arguments import ArgumentEncoder
from jaxd_protocol.errors import ArgumentError, JaxdError
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_protocol.pytree import dump_literal
from jaxd_protocol.pytree.leaves import array_spec, itemsize_of, spec_bytes

if TYPE_CHECKING:
    from jaxd.request.function_snapshot import FunctionSnapshot


def encode_specs(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    statics: StaticArgs,
    known_objects: dict[Any, Any],
) -> tuple[bytes, list[memoryview]]:
    """Skeleton of a call with such arguments, and the buffers of what is pickled in it.

    The skeleton is that of a call with the arrays themselves. Numbers count as themselves, and so
    do arrays: their data is not read.

    Raises:
        ArgumentError: when a value is of no use to jax, or a spec's shape or dtype is none.
        TracerError: when a value is a tracer.
        PackingError: when an object among them cannot travel, or is spread over several devices.
    """
    encoder = _SpecEncoder(known_objects, strict=statics.strict)
    encoder.call(args, kwargs, statics)
    return encoder.skeleton, encoder.buffers


def describe_call(
    snapshot: FunctionSnapshot, args: tuple[Any, ...], kwargs: dict[str, Any], statics: StaticArgs
) -> tuple[bytes, list[memoryview]]:
    """The same of a call of a function, which takes note of the objects that were met.

    Raises:
        ArgumentError, TracerError, PackingError: as `encode_specs`, and as
            `FunctionSnapshot.learn_objects`.
    """
    met: dict[Any, Any] = {}
    with snapshot.pickling_context():
        found = encode_specs(args, kwargs, statics, met)
    snapshot.learn_objects(met)
    return found


def is_spec(value: Any) -> bool:
    """Whether a value stands for an array: it has shape and dtype, and is no node of a tree."""
    if isinstance(value, type | tuple) or type(value) is LazyArray:
        return False
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return False
    jax = loaded_jax()
    return jax is None or bool(jax.tree_util.all_leaves((value,)))


class _SpecEncoder(ArgumentEncoder):
    """Writes skeletons; only what is pickled has data."""

    def small(self, data: bytes) -> None:
        """Numbers and small arrays stay here."""

    def array(self, array: Any, weak: bool = False, is_jax: bool = False) -> None:
        """Appends what stands for a numpy array."""
        self._skeleton.append(array_spec(array.dtype, array.shape, weak, is_jax)[0])

    def remote(self, array: RemoteArray) -> None:
        """Appends what stands for an array on the server."""
        self.spec(array.leaf)

    def raw_array(self, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        """Appends what stands for an array that is only bytes."""
        self._skeleton.append(spec_bytes("A", dtype, shape))

    def key(self, impl: str, data: Any) -> None:
        """Appends what stands for an array of PRNG keys."""
        self._skeleton += (b"K", dump_literal(impl), array_spec(data.dtype, data.shape)[0][1:])

    def other(self, value: Any) -> None:
        """As for a call; a spec as the array that it stands for."""
        if not is_spec(value):
            super().other(value)
            return
        self._check_sharding(value)
        keys = _keys_of(value)
        if keys is None:
            self._skeleton.append(_array_of(value))
        else:
            self.key(keys.impl, keys)

    def jax_array(self, value: Any) -> None:
        """Appends what stands for an array of jax, which may not be computed yet."""
        self.other(value)

    def _check_sharding(self, spec: Any) -> None:
        jax = loaded_jax()
        sharding = getattr(spec, "sharding", None)
        if jax is not None and isinstance(sharding, jax.sharding.Sharding):
            from jaxd_protocol.jax_objects.decomposition import check_one_device

            check_one_device(sharding, "a spec", "leave its sharding out")

    def _pickled(self, value: Any) -> None:
        super()._pickled(_ZeroArrays().of(value))


# reading specs -----------------------------------------------------------------------------------


class _Keys(NamedTuple):
    """An array of PRNG keys: implementation, and shape and dtype of the keys' numbers."""

    impl: str
    shape: tuple[int, ...]
    dtype: Any


_KEY_NUMBERS: Final = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}
"""The generators of jax, each with how many numbers of 32 bits a key has."""

_KEY_NAME: Final = re.compile(rf"key<({'|'.join(_KEY_NUMBERS)})>")
"""The dtype of keys as `f.eval_shape` names it in a process without jax."""


def _keys_of(spec: Any) -> _Keys | None:
    """What is behind a spec of typed PRNG keys; None for any other.

    Raises:
        TracerError: when it is a tracer.
    """
    named = _KEY_NAME.fullmatch(spec.dtype) if type(spec.dtype) is str else None
    if named is not None:
        return _Keys(named[1], (*_shape_of(spec), _KEY_NUMBERS[named[1]]), _numpy_dtype("uint32"))
    jax = loaded_jax()
    if jax is None:
        return None
    if isinstance(spec, jax.core.Tracer):
        encode_jax(ArgumentEncoder({}), spec)  # raises the error
    if not _is_key_dtype(jax, spec.dtype):
        return None
    names = []

    def numbers(keys: Any) -> Any:
        names.append(str(jax.random.key_impl(keys)))
        return jax.random.key_data(keys)

    data = jax.eval_shape(numbers, jax.ShapeDtypeStruct(_shape_of(spec), spec.dtype))
    return _Keys(names[0], data.shape, data.dtype)


def _is_key_dtype(jax: Any, dtype: Any) -> bool:
    try:
        return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))
    except TypeError:  # no dtype at all, which is an error where it is needed
        return False


def _array_of(spec: Any) -> bytes:
    """The skeleton of the array that a spec stands for."""
    dtype, shape, weak = spec.dtype, _shape_of(spec), _is_weak(spec)
    if type(dtype) is str and "numpy" not in sys.modules:
        try:
            itemsize_of(dtype)
        except JaxdError as error:
            raise _dtype_error(dtype) from error
        return spec_bytes("A", dtype, shape, weak)
    return array_spec(_numpy_dtype(dtype), shape, weak, _is_jax(spec))[0]


def _numpy_dtype(dtype: Any) -> Any:
    """The dtype, in native byte order."""
    import numpy

    try:
        found = numpy.dtype(dtype)
    except TypeError as error:
        raise _dtype_error(dtype) from error
    return found if found.isnative else found.newbyteorder("=")


def _dtype_error(dtype: Any) -> ArgumentError:
    return ArgumentError(
        f"a spec has the dtype {dtype!r}, which is none of jax. Name one such as 'float32'."
    )


def _shape_of(spec: Any) -> tuple[int, ...]:
    try:
        shape = tuple(map(operator.index, spec.shape))
    except TypeError as error:
        raise _shape_error(spec) from error
    if min(shape, default=0) < 0:
        raise _shape_error(spec)
    return shape


def _shape_error(spec: Any) -> ArgumentError:
    return ArgumentError(
        f"a spec has the shape {spec.shape!r}. A program is built for one size: give numbers that "
        "are not negative, and one spec for each shape that calls will have; for sizes with names, "
        "warm(…, over={'batch': (1, 8)})."
    )


def _is_weak(spec: Any) -> bool:
    return bool(getattr(spec, "weak_type", False))


def _is_jax(spec: Any) -> bool:
    """Whether it stands for an array of jax, of which 64 bits stay; it may be one itself."""
    jax = loaded_jax()
    return getattr(spec, "is_jax", False) or (jax is not None and isinstance(spec, jax.Array))


# sizes that have names ---------------------------------------------------------------------------


class _Sized:
    """A spec with a size for each axis; a tuple would be a node of a tree."""

    def __init__(self, shape: tuple[Any, ...], spec: Any) -> None:
        self.shape = shape
        self.dtype = spec.dtype
        self.weak_type = _is_weak(spec)


def specs_over(
    args: tuple[Any, ...], kwargs: dict[str, Any], over: Mapping[str, Iterable[int]]
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments in which sizes of specs have names, once for each combination of sizes.

    Args:
        args: as for `encode_specs`; a name in a spec's shape stands for a size.
        kwargs: the same.
        over: the sizes of each name, in the order of use; the last name changes first.

    Raises:
        ArgumentError: when a name has no sizes, or there is none of that name in a shape.
    """
    used: set[str] = set()

    def sized(spec: Any, sizes: Mapping[str, int]) -> Any:
        names = {size for size in spec.shape if isinstance(size, str)}
        if not names:
            return spec
        used.update(names)
        shape = tuple(sizes.get(size, size) for size in spec.shape)
        jax = loaded_jax()
        if jax is not None and isinstance(spec, jax.ShapeDtypeStruct):
            return spec.update(shape=shape)
        return _Sized(shape, spec)

    combinations = [
        dict(zip(over, sizes, strict=True)) for sizes in itertools.product(*over.values())
    ]
    found = [_with_specs((args, kwargs), partial(sized, sizes=sizes)) for sizes in combinations]
    if not found:
        raise ArgumentError("over has no size for a name. Give some: over={'batch': (1, 8)}.")
    for name in over:
        if name not in used:
            raise ArgumentError(
                f"over has sizes for {name!r}, which stands in no spec's shape. Put it there: "
                f"jax.ShapeDtypeStruct(({name!r}, 128), 'float32')."
            )
    return found


# specs inside of objects -------------------------------------------------------------------------


class _ZeroArrays:
    """Replaces specs by arrays of zeros in values that are pickled."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any]] = {}  # one array that is met twice stays one

    def of(self, value: Any) -> Any:
        """The value with arrays in it; what jax does not take apart stays as it is."""
        return _with_specs(value, self._zeros)

    def _zeros(self, spec: Any) -> Any:
        if id(spec) not in self._made:
            self._made[id(spec)] = (spec, zeros_of(spec))  # kept: its id must stay its own
        return self._made[id(spec)][1]


def _with_specs(value: Any, replace: Callable[[Any], Any]) -> Any:
    """The value with something else for each spec; what jax does not take apart stays as it is."""
    if is_spec(value):
        return replace(value)
    inner = partial(_with_specs, replace=replace)
    kind: Any = type(value)
    if kind is dict or kind is OrderedDict:
        return kind((key, inner(child)) for key, child in value.items())
    if kind is list or kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_make")):
        return getattr(kind, "_make", kind)(map(inner, value))
    jax = loaded_jax()
    if jax is None or jax.tree_util.all_leaves((value,)):
        return value
    leaves, structure = jax.tree.flatten(value, is_leaf=is_spec)
    return jax.tree.unflatten(structure, map(inner, leaves))


def zeros_of(spec: Any) -> Any:
    """The array that a spec stands for, of zeros.

    Raises:
        ArgumentError: when its shape or dtype is none that jax has.
    """
    import numpy

    if isinstance(spec, numpy.generic):
        return spec  # which its pickle holds: no buffer beside it
    keys = _keys_of(spec)
    if keys is not None:
        return to_jax_keys(numpy.zeros(keys.shape, keys.dtype), keys.impl)
    shape, dtype = _shape_of(spec), _numpy_dtype(spec.dtype)
    array_spec(dtype, shape)  # refuses what jax has not
    zeros = numpy.zeros(shape, dtype)
    return to_jax(zeros, weak=True) if _is_weak(spec) and loaded_jax() is not None else zeros
