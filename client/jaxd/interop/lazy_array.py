"""Arrays that are converted when they are used, as in a process without numpy.

A stand-in behaves as the array, and is converted when it is used. Importing numpy costs more than a
whole call, so a process that has not imported it gets its results as `LazyArray`: single numbers
work without numpy, everything else imports it.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from typing import Any, Final

from jaxd_protocol.pytree.leaves import dtype_of


class ArrayLike:
    """Base class of array stand-ins: every operation is forwarded to the array they stand for.

    Operators, indexing, iteration, conversions, formatting, numpy's functions and every public
    attribute of the array work. A subclass makes the array in `_materialized`.

    Attributes:
        shape: dimensions.
    """

    __array_priority__ = 100  # as jax's own: numpy's operators leave the work to ours
    __hash__ = None  # type: ignore[assignment]  # as for arrays of numpy and jax

    shape: tuple[int, ...]

    def _materialized(self) -> Any:
        """The array that this stands for."""
        raise NotImplementedError

    def __stands_for__(self) -> Any:
        """The array that counts and travels where a function captures this."""
        import numpy  # noqa: F401  without it what is made would be another stand-in

        return self._materialized()

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        return numpy.array(self._materialized(), dtype=dtype, copy=copy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # protocols are answered by the class or not at all
            raise AttributeError(name)
        return getattr(self._materialized(), name)

    def __array_namespace__(self, **options: Any) -> Any:
        return self._materialized().__array_namespace__(**options)

    def __dlpack__(self, **options: Any) -> Any:
        return self._materialized().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._materialized().__dlpack_device__()


def materialized(value: Any) -> Any:
    """The array that a value stands for, also inside a tuple; anything else as it is."""
    if isinstance(value, ArrayLike):
        return value._materialized()  # noqa: SLF001  our own
    if type(value) is tuple:
        return tuple(map(materialized, value))
    return value


def forward(function: Callable[..., Any], name: str, *, reflected: bool = False) -> Any:
    """A method called `name` that passes the arrays to an operator or built-in function."""

    def method(self: ArrayLike, *args: Any) -> Any:
        values = [materialized(value) for value in (self, *args)]
        return function(*(values[::-1] if reflected else values))

    method.__name__ = name
    method.__doc__ = f"As `{name}` of the array."
    return method


BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "divmod": divmod, "pow": operator.pow,
    "matmul": operator.matmul, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "lshift": operator.lshift, "rshift": operator.rshift,
}  # fmt: skip
_OTHER_OPERATORS: Final[dict[str, Callable[..., Any]]] = {
    "lt": operator.lt, "le": operator.le, "eq": operator.eq, "ne": operator.ne,
    "gt": operator.gt, "ge": operator.ge, "neg": operator.neg, "pos": operator.pos,
    "abs": abs, "invert": operator.invert, "round": round, "getitem": operator.getitem,
    "contains": operator.contains, "iter": iter, "reversed": reversed, "float": float,
    "int": int, "bool": bool, "complex": complex, "index": operator.index, "str": str,
    "repr": repr, "format": format,
}  # fmt: skip
for _name, _function in (BINARY | _OTHER_OPERATORS).items():
    setattr(ArrayLike, f"__{_name}__", forward(_function, f"__{_name}__"))
for _name, _function in BINARY.items():
    setattr(ArrayLike, f"__r{_name}__", forward(_function, f"__r{_name}__", reflected=True))


_SCALARS: Final = {"float64": "d", "float32": "f", "float16": "e", "int8": "b", "int16": "h",
                   "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
                   "uint64": "Q", "bool": "?"}  # fmt: skip

_FLOATS: Final = frozenset({"float64", "float32"})
_DEFAULT_DTYPES: Final = frozenset({"float64", "int64", "bool"})
"""The dtypes that numpy leaves out of a repr, because plain numbers have them."""


class LazyArray(ArrayLike):
    """An array whose bytes are in this process, converted to a numpy array when one is needed.

    It can be changed in place, as numpy's. Thread-safe; the first use may make the array twice,
    with equal content.

    Attributes:
        shape: dimensions.
    """

    __setitem__ = forward(operator.setitem, "__setitem__")

    def __init__(self, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        """Takes the name of the dtype and the data in C order."""
        self._dtype = dtype
        self.shape = shape
        self._data = data
        self._array: Any = None

    def _materialized(self) -> Any:
        if self._array is None:
            import numpy

            self._array = numpy.ndarray(self.shape, dtype_of(self._dtype), bytearray(self._data))
        return self._array

    def _scalar(self) -> Any:
        """The value of a 0-d array as a Python number, without numpy where that is possible."""
        code = _SCALARS.get(self._dtype)
        if self._array is None and code is not None and not self.shape:
            return struct.unpack("<" + code, self._data)[0]
        return self._materialized().item()

    @property
    def raw(self) -> tuple[str, tuple[int, ...], memoryview]:
        """Name of the dtype, shape, and the bytes in C order, changes included."""
        data = self._data if self._array is None else memoryview(self._array.tobytes())
        return self._dtype, self.shape, data

    def __float__(self) -> float:
        return float(self._scalar())

    def __int__(self) -> int:
        return int(self._scalar())

    def __bool__(self) -> bool:
        return bool(self._scalar())

    def __complex__(self) -> complex:
        return complex(self._scalar())

    def __repr__(self) -> str:
        text = self._plain_text()
        if text is None or (self._dtype in _FLOATS and not self._is_short(text)):
            return repr(self._materialized())
        kind = "" if self._dtype in _DEFAULT_DTYPES else f", dtype={self._dtype}"
        return f"array({text.removesuffix('0') if text.endswith('.0') else text}{kind})"

    def __str__(self) -> str:
        return self._plain_text() or str(self._materialized())

    def _plain_text(self) -> str | None:
        """A 0-d array's number as numpy writes it, where that needs no numpy."""
        if self.shape or self._dtype not in _SCALARS or self._dtype == "float16":
            return None
        number = self._scalar()
        if self._dtype == "float32":
            return _shortest_float32(number) if not number or _is_ordinary(number) else None
        return str(number)

    def _is_short(self, text: str) -> bool:
        """Whether numpy writes a float in an array with all of its digits, and no exponent."""
        number = self._scalar()
        return len(text.partition(".")[2]) <= 8 and (not number or _is_ordinary(number))

    def __format__(self, spec: str) -> str:
        return format(self._scalar() if not self.shape else self._materialized(), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        from jaxd_protocol.pickling.names import call

        dtype, shape, data = self.raw
        return call, ("lazy_array", dtype, shape, bytes(data))


def _is_ordinary(number: float) -> bool:
    """Whether numpy surely writes the number without an exponent."""
    return 1e-4 <= abs(number) < 1e6


def _shortest_float32(number: float) -> str:
    """The shortest decimal that is this float32, as numpy prints it."""
    exact = struct.pack("<f", number)
    for digits in range(1, 10):
        rounded = float(f"{number:.{digits}g}")
        if abs(rounded) < 3.5e38 and struct.pack("<f", rounded) == exact:
            return str(rounded)
    return str(number)


def _restore(dtype: str, shape: tuple[int, ...], data: bytes) -> LazyArray:
    return LazyArray(dtype, shape, memoryview(data))


for _name in BINARY.keys() - {"divmod"}:  # the result shares our memory
    _in_place = getattr(operator, f"__i{_name}__")
    setattr(LazyArray, f"__i{_name}__", forward(_in_place, f"__i{_name}__"))
