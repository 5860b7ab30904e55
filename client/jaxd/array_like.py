"""What stands for an array behaves as one: it becomes the array when it is touched."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

__all__ = ["BINARY", "ArrayLike", "forward", "touched"]


class ArrayLike:
    """Base of arrays that are made when touched: what is asked of them, the array answers.

    Operators, indexing, iteration, conversions, formatting, numpy's functions and every public
    attribute of the array work. A subclass says in `_touched` how the array is made.

    Attributes:
        shape: dimensions.
    """

    __array_priority__ = 100  # as jax's own: numpy's operators leave the work to ours
    __hash__ = None  # type: ignore[assignment]  # as for arrays of numpy and jax

    shape: tuple[int, ...]

    def _touched(self) -> Any:
        """The array that this stands for."""
        raise NotImplementedError

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

        return numpy.array(self._touched(), dtype=dtype, copy=copy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # protocols are answered by the class or not at all
            raise AttributeError(name)
        return getattr(self._touched(), name)

    def __array_namespace__(self, **options: Any) -> Any:
        return self._touched().__array_namespace__(**options)

    def __dlpack__(self, **options: Any) -> Any:
        return self._touched().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._touched().__dlpack_device__()


def touched(value: Any) -> Any:
    """The array that a value stands for, also inside a tuple; anything else as it is."""
    if isinstance(value, ArrayLike):
        return value._touched()  # noqa: SLF001  our own
    if type(value) is tuple:
        return tuple(map(touched, value))
    return value


def forward(function: Callable[..., Any], name: str, *, reflected: bool = False) -> Any:
    """A method called `name` that hands the arrays to an operator or built-in function."""

    def method(self: ArrayLike, *args: Any) -> Any:
        values = [touched(value) for value in (self, *args)]
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
_OTHERS: Final[dict[str, Callable[..., Any]]] = {
    "lt": operator.lt, "le": operator.le, "eq": operator.eq, "ne": operator.ne,
    "gt": operator.gt, "ge": operator.ge, "neg": operator.neg, "pos": operator.pos,
    "abs": abs, "invert": operator.invert, "round": round, "getitem": operator.getitem,
    "contains": operator.contains, "iter": iter, "reversed": reversed, "float": float,
    "int": int, "bool": bool, "complex": complex, "index": operator.index, "str": str,
    "repr": repr, "format": format,
}  # fmt: skip
for _name, _function in (BINARY | _OTHERS).items():
    setattr(ArrayLike, f"__{_name}__", forward(_function, f"__{_name}__"))
for _name, _function in BINARY.items():
    setattr(ArrayLike, f"__r{_name}__", forward(_function, f"__r{_name}__", reflected=True))
