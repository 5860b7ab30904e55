"""Values of jax's own types that are nothing but data: shapes, dtypes, shardings, keys of paths.

And functions that do nothing but calculate, such as `jax.nn.relu`, by their names in a table, and
partials of these. As those of Python in `pytree.data_values`. Each end makes them with its own
jax, by the public constructors; where it has not imported jax there are none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, Final

from jaxd_protocol.jax_objects.decomposition import partitions_of
from jaxd_protocol.jax_objects.names import is_of_jax, kind_of
from jaxd_protocol.pytree.data_values import KINDS, DataKind, check, typed

_MAX_RANK: Final = 64
_MAX_SIZE: Final = 1 << 59

NUMERIC_FUNCTIONS: Final[dict[str, frozenset[str]]] = {
    "jax.nn": frozenset({
        "celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh",
        "identity", "leaky_relu", "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu",
        "sigmoid", "silu", "soft_sign", "softmax", "softplus", "sparse_plus", "sparse_sigmoid",
        "squareplus", "standardize", "swish",
    }),
    "jax.numpy": frozenset({
        "abs", "absolute", "add", "arctan", "cos", "exp", "log", "log1p", "max", "maximum",
        "mean", "min", "minimum", "multiply", "sign", "sin", "sqrt", "square", "sum", "tanh",
    }),
    "flax.linen.pooling": frozenset({
        "avg_pool", "max_pool", "min_pool",
    }),
}  # fmt: skip
"""Functions of arrays that a library calls for its users, by module: they read and write nothing.

Each end finds its own where it has loaded the module.
"""


def kind_name(value: Any) -> str | None:
    """What the kind of a value is called; None when it is of none."""
    if type(value) in KINDS:
        return _name_of(type(value))
    kind = kind_of(value)
    if kind is None and is_of_jax(type(value)) and type(value).__name__ in _PATH_KEYS:
        kind = type(value).__name__
    if type(value) is partial and not vars(value) and numeric_function_name(value.func):
        return "functools.partial"
    if numeric_function_name(value) is not None:
        return "numeric function"
    return kind if kind in _KINDS_OF_JAX else None


def numeric_function_name(value: Any) -> tuple[str, str] | None:
    """The module and name of a function of `NUMERIC_FUNCTIONS`; None for anything else."""
    if type(value) is not FunctionType and kind_of(value) not in _FUNCTION_KINDS:
        return None
    for module, names in NUMERIC_FUNCTIONS.items():
        name = getattr(value, "__name__", None)  # of a partial that jax has wrapped there is none
        if name in names and getattr(sys.modules.get(module), name, None) is value:
            return module, name
    return None


def find_kind(name: str) -> DataKind | None:
    """The kind with that name; None when there is none, or it takes jax and this has none."""
    known = _by_name.get(name)
    if known is None and "jax" in sys.modules:
        known = _KINDS_OF_JAX.get(name)
    return known


def parts_of(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Kind and parts of a value; None when it is of none, or has more to it than these."""
    name = kind_name(value)
    kind = None if name is None else find_kind(name)
    if name is None or kind is None:
        return None
    try:
        parts = kind.take(value)
        made = kind.make(*parts)
    except Exception:  # noqa: BLE001  an attribute that another version of jax has not
        return None
    return (name, parts) if made is value or _is_equal(made, value) else None


def _is_equal(made: Any, value: Any) -> bool:
    """Whether what was made of the parts of a value is all of it."""
    if type(made) is not type(value):
        return False
    if type(value) in KINDS or type(value) is partial:
        return True
    return bool(made == value)


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_by_name: Final = {_name_of(cls): kind for cls, kind in KINDS.items()}


def _jax() -> Any:
    return sys.modules["jax"]


def _shape(shape: Any) -> tuple[int, ...]:
    typed(tuple, shape)
    typed(int, *shape)
    check(len(shape) <= _MAX_RANK and all(0 <= size < _MAX_SIZE for size in shape))
    return tuple(shape)


def _dtype_parts(dtype: Any) -> Any:
    return dtype if kind_of(dtype) == "key type" else sys.modules["numpy"].dtype(dtype)


def _check_dtype(dtype: Any) -> None:
    numpy: Any = sys.modules["numpy"]
    check(isinstance(dtype, numpy.dtype) or kind_of(dtype) == "key type")


def _spec(shape: Any, dtype: Any, weak: Any, sharding: Any) -> Any:
    _check_dtype(dtype)
    typed(bool, weak)
    check(sharding is None or kind_of(sharding) in ("named sharding", "single device sharding"))
    return _jax().ShapeDtypeStruct(_shape(shape), dtype, weak_type=weak, sharding=sharding)


def _abstract(shape: Any, dtype: Any, weak: Any) -> Any:
    _check_dtype(dtype)
    typed(bool, weak)
    return _jax().core.ShapedArray(_shape(shape), dtype, weak_type=weak)


def _key_type(implementation: str) -> Any:
    typed(str, implementation)
    jax = _jax()
    return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype


def _partition_parts(spec: Any) -> tuple[Any, ...]:
    free = type(spec).UNCONSTRAINED
    axes = tuple(
        True if part is free else part for part in partitions_of(spec)
    )  # True is no name of an axis
    return axes, tuple(spec.unreduced), tuple(spec.reduced)


def _partition(axes: Any, unreduced: Any, reduced: Any) -> Any:
    typed(tuple, axes, unreduced, reduced)
    spec = _jax().sharding.PartitionSpec
    more = {"unreduced": frozenset(unreduced), "reduced": frozenset(reduced)}
    given = {name: names for name, names in more.items() if names}
    return spec(*(spec.UNCONSTRAINED if part is True else part for part in axes), **given)


def _device(platform: Any, number: Any) -> Any:
    """A device of this process; of the backend that it computes on, no other is started."""
    found = (each for each in _jax().devices() if (each.platform, each.id) == (platform, number))
    device = next(found, None)
    check(device is not None)
    return device


def _mesh_parts(mesh: Any) -> tuple[Any, ...]:
    kinds = tuple(kind.name for kind in mesh.axis_types)
    return tuple(mesh.devices.shape), tuple(mesh.devices.flat), tuple(mesh.axis_names), kinds


def _mesh(shape: Any, devices: Any, names: Any, kinds: Any) -> Any:
    typed(tuple, devices, names, kinds)
    check(bool(devices) and all(kind_of(device) == "device" for device in devices))
    numpy: Any = sys.modules["numpy"]
    grid = numpy.array(devices, dtype=object).reshape(_shape(shape))
    return _jax().sharding.Mesh(grid, names, axis_types=_axis_types(kinds))


def _axis_types(names: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_jax().sharding.AxisType[name] for name in names)


def _named_sharding(mesh: Any, spec: Any, memory: Any) -> Any:
    check(kind_of(mesh) == "mesh" and kind_of(spec) == "partition spec")
    check(memory is None or type(memory) is str)
    return _jax().sharding.NamedSharding(mesh, spec, memory_kind=memory)


def _single_device_sharding(device: Any, memory: Any) -> Any:
    check(kind_of(device) == "device" and (memory is None or type(memory) is str))
    return _jax().sharding.SingleDeviceSharding(device, memory_kind=memory)


def _numeric_function(module: Any, name: Any) -> Any:
    typed(str, module, name)
    check(name in NUMERIC_FUNCTIONS.get(module, ()))
    return getattr(sys.modules[module], name)


def _partial(function: Any, arguments: Any, keywords: Any) -> Any:
    check(numeric_function_name(function) is not None)
    typed(tuple, arguments)
    typed(dict, keywords)
    typed(str, *keywords)
    return partial(function, *arguments, **keywords)


def _path_key(name: str, field: str, *types: type) -> DataKind:
    def make(part: Any) -> Any:
        check(not types or type(part) in types)
        return getattr(_jax().tree_util, name)(part)

    return DataKind(lambda value: (getattr(value, field),), make)


def _take(*names: str) -> Callable[[Any], tuple[Any, ...]]:
    return lambda value: tuple(getattr(value, name) for name in names)


_FUNCTION_KINDS: Final = frozenset({"jit", "custom_jvp", "custom_vjp", "ufunc"})
"""Of what stands for a function of jax."""

_PATH_KEYS: Final[dict[str, DataKind]] = {
    "DictKey": _path_key("DictKey", "key"),
    "SequenceKey": _path_key("SequenceKey", "idx", int),
    "GetAttrKey": _path_key("GetAttrKey", "name", str),
    "FlattenedIndexKey": _path_key("FlattenedIndexKey", "key", int),
}

_KINDS_OF_JAX: Final[dict[str, DataKind]] = {
    "shape": DataKind(
        lambda value: (
            tuple(value.shape),
            _dtype_parts(value.dtype),
            bool(value.weak_type),
            value.sharding,
        ),
        _spec,
    ),
    "abstract array": DataKind(
        lambda value: (tuple(value.shape), _dtype_parts(value.dtype), bool(value.weak_type)),
        _abstract,
    ),
    "key type": DataKind(lambda value: (value._impl.name,), _key_type),
    "partition spec": DataKind(_partition_parts, _partition),
    "device": DataKind(_take("platform", "id"), _device),
    "mesh": DataKind(_mesh_parts, _mesh),
    "named sharding": DataKind(_take("mesh", "spec", "memory_kind"), _named_sharding),
    "single device sharding": DataKind(
        lambda value: (*value.device_set, value.memory_kind), _single_device_sharding
    ),
    "numeric function": DataKind(
        lambda value: numeric_function_name(value) or (), _numeric_function
    ),
    "functools.partial": DataKind(_take("func", "args", "keywords"), _partial),
    **_PATH_KEYS,
}
"""Those of types by what `names.JAX_TYPES` calls them."""
