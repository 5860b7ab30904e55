"""Results in a process without numpy: arrays that become numpy arrays when touched.

Importing numpy costs more than a whole call. A process that has not imported it gets its results
as `LazyArray`: single numbers work without numpy, everything else imports it then.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from jaxd_protocol.trees.leaves import dtype_of

__all__ = ["LazyArray"]

_SCALARS: Final = {"float64": "d", "float32": "f", "float16": "e", "int8": "b", "int16": "h",
                   "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
                   "uint64": "Q", "bool": "?"}  # fmt: skip

_FLOATS: Final = frozenset({"float64", "float32"})
_UNNAMED: Final = frozenset({"float64", "int64", "bool"})
"""The dtypes that numpy does not mention, because plain numbers have them."""


class LazyArray:
    """An array whose bytes are here, and which is a numpy array as soon as one is needed.

    Operators, indexing, iteration, formatting, ufuncs and every attribute of `numpy.ndarray`
    work. Thread-safe; the first touch may make the array twice, with equal content.

    Attributes:
        shape: dimensions.
    """

    __array_priority__ = 0
    __hash__ = None  # type: ignore[assignment]  # as for numpy's own

    def __init__(self, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        """Takes the name of the dtype and the data in C order."""
        self._dtype = dtype
        self.shape = shape
        self._data = data
        self._array: Any = None

    def _numpy(self) -> Any:
        if self._array is None:
            import numpy

            self._array = numpy.ndarray(self.shape, dtype_of(self._dtype), bytearray(self._data))
        return self._array

    def _number(self) -> Any:
        """The value of a 0-d array as a Python number, without numpy where that is possible."""
        code = _SCALARS.get(self._dtype)
        if self._array is None and code is not None and not self.shape:
            return struct.unpack("<" + code, self._data)[0]
        return self._numpy().item()

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def raw(self) -> tuple[str, tuple[int, ...], memoryview]:
        """Name of the dtype, shape, and the bytes in C order, changes included."""
        data = self._data if self._array is None else memoryview(self._array.tobytes())
        return self._dtype, self.shape, data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        return numpy.array(self._numpy(), dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arrays = [_touched(x) for x in inputs]
        return getattr(ufunc, method)(*arrays, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols are answered by the class or not at all
            raise AttributeError(name)
        return getattr(self._numpy(), name)

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __bool__(self) -> bool:
        return bool(self._number())

    def __complex__(self) -> complex:
        return complex(self._number())

    def __index__(self) -> int:
        return self._numpy().__index__()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        text = self._plain_text()
        if text is None or (self._dtype in _FLOATS and not self._is_short(text)):
            return repr(self._numpy())
        kind = "" if self._dtype in _UNNAMED else f", dtype={self._dtype}"
        return f"array({text.removesuffix('0') if text.endswith('.0') else text}{kind})"

    def __str__(self) -> str:
        return self._plain_text() or str(self._numpy())

    def _plain_text(self) -> str | None:
        """A 0-d array's number as numpy writes it, where that needs no numpy."""
        if self.shape or self._dtype not in _SCALARS or self._dtype == "float16":
            return None
        number = self._number()
        if self._dtype == "float32":
            return _shortest_float32(number) if not number or _is_ordinary(number) else None
        return str(number)

    def _is_short(self, text: str) -> bool:
        """Whether numpy writes a float in an array with all of its digits, and no exponent."""
        number = self._number()
        return len(text.partition(".")[2]) <= 8 and (not number or _is_ordinary(number))

    def __format__(self, spec: str) -> str:
        return format(self._number() if not self.shape else self._numpy(), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        dtype, shape, data = self.raw
        return _restore, (dtype, shape, bytes(data))


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


def _touched(value: Any) -> Any:
    return value._numpy() if isinstance(value, LazyArray) else value  # noqa: SLF001  our own


def _forward(name: str) -> Any:
    def method(self: LazyArray, *args: Any) -> Any:
        values = [_touched(x) for x in args]
        return getattr(_touched(self), name)(*values)

    method.__name__ = name
    method.__doc__ = f"As `numpy.ndarray.{name}`."
    return method


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul",
           "and", "or", "xor", "lshift", "rshift")  # fmt: skip
_FORWARDED = [
    *(f"__{prefix}{name}__" for name in _BINARY for prefix in ("", "r")),
    *(f"__i{name}__" for name in _BINARY if name != "divmod"),  # the result shares our memory
    *(
        f"__{name}__"
        for name in ("lt", "le", "eq", "ne", "gt", "ge", "neg", "pos", "abs", "invert")
    ),
    *("__len__", "__iter__", "__getitem__", "__setitem__", "__contains__"),
]
for _name in _FORWARDED:
    setattr(LazyArray, _name, _forward(_name))
