"""What people do with arrays: a table of operations that every kind of array has to survive.

Each takes a float32 matrix of 3 by 4, positive but for one element, and the module `np` or `jnp`.
"""

from __future__ import annotations

import copy
import math
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

Operation = Callable[[Any, Any], Any]

iadd: Any = operator.iadd
_MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)

ANY: dict[str, Operation] = {
    # operators
    "x + 1": lambda x, xp: x + 1,
    "1 + x": lambda x, xp: 1 + x,
    "x + x": lambda x, xp: x + x,
    "x + array": lambda x, xp: x + xp.ones(4),
    "array + x": lambda x, xp: xp.ones(4) + x,
    "numpy + x": lambda x, xp: _MATRIX + x,
    "scalar + x": lambda x, xp: np.float32(2) + x,
    "1 - x": lambda x, xp: 1 - x,
    "x * 2": lambda x, xp: x * 2,
    "x % 3": lambda x, xp: x % 3,
    "1 / x": lambda x, xp: 1 / (x + 10),
    "x // 2": lambda x, xp: x // 2,
    "x ** 2": lambda x, xp: x**2,
    "2 ** x": lambda x, xp: 2**x,
    "divmod": lambda x, xp: divmod(x, 2),
    "rdivmod": lambda x, xp: divmod(9, x + 10),
    "x @ x.T": lambda x, xp: x @ x.T,
    "numpy @ x": lambda x, xp: _MATRIX.T @ x,
    "-x": lambda x, xp: -x,
    "+x": lambda x, xp: +x,
    "abs": lambda x, xp: abs(x),
    "x > 2": lambda x, xp: x > 2,
    "x >= x": lambda x, xp: operator.ge(x, x),
    "x <= array": lambda x, xp: x <= xp.ones(4),
    "2 < x": lambda x, xp: operator.lt(2, x),
    "x == x": lambda x, xp: operator.eq(x, x),
    "numpy == x": lambda x, xp: operator.eq(_MATRIX, x),
    "x != 1": lambda x, xp: x != 1,
    "x == None": lambda x, xp: operator.eq(x, None),
    "&": lambda x, xp: (x > 1) & (x < 5),
    "~": lambda x, xp: ~x.astype(int),
    "|": lambda x, xp: x.astype(int) | 1,
    "^": lambda x, xp: 3 ^ x.astype(int),
    "<<": lambda x, xp: 1 << x.astype("int32"),
    ">>": lambda x, xp: x.astype("int32") >> 1,
    "x += 1": lambda x, xp: iadd(x + 0, x),
    "in place on numpy": lambda x, xp: iadd(_MATRIX.copy(), x),
    # indexing
    "row": lambda x, xp: x[1],
    "element": lambda x, xp: x[1, 2],
    "last": lambda x, xp: x[-1, -1],
    "rows": lambda x, xp: x[1:3],
    "reversed columns": lambda x, xp: x[:, ::-1],
    "ellipsis": lambda x, xp: x[..., 0],
    "new axis": lambda x, xp: x[:, None],
    "nothing": lambda x, xp: x[()],
    "list of rows": lambda x, xp: x[xp.array([0, 2])],
    "mask": lambda x, xp: x[x > 2],
    "by itself": lambda x, xp: xp.arange(20)[x.astype(int)],
    "numpy by it": lambda x, xp: np.arange(20)[np.abs(x).astype(int)],
    "too many": lambda x, xp: x[0, 0, 0],
    "past the end": lambda x, xp: x[7],
    "by a float": lambda x, xp: x[1.5],
    "by a text": lambda x, xp: x["a"],
    "step 0": lambda x, xp: x[::0],
    # as a container
    "len": lambda x, xp: len(x),
    "list": lambda x, xp: list(x),
    "iter": lambda x, xp: [row[0] for row in x],
    "unpack": lambda x, xp: max(*x, key=lambda row: row[0]),
    "reversed": lambda x, xp: list(reversed(x)),
    "in": lambda x, xp: 3.0 in x,
    "not in": lambda x, xp: 99 in x,
    "sum of rows": lambda x, xp: sum(x),
    # conversions and texts
    "float": lambda x, xp: float(x[1, 1]),
    "float of many": lambda x, xp: float(x),
    "int": lambda x, xp: int(x.max()),
    "bool": lambda x, xp: bool((x > -5).all()),
    "bool of many": lambda x, xp: bool(x),
    "complex": lambda x, xp: complex(x[0, 0]),
    "index of a float": lambda x, xp: operator.index(x),
    "math": lambda x, xp: math.sqrt(x[2, 2]),
    "str": lambda x, xp: str(x),
    "format": lambda x, xp: f"{x}",
    "format of a number": lambda x, xp: f"{x[1, 1]:.3f}",
    "format of many": lambda x, xp: f"{x:.3f}",
    "hash": lambda x, xp: hash(x),
    # attributes
    "shape": lambda x, xp: x.shape,
    "dtype": lambda x, xp: x.dtype,
    "ndim": lambda x, xp: x.ndim,
    "size": lambda x, xp: x.size,
    "nbytes": lambda x, xp: x.nbytes,
    "itemsize": lambda x, xp: x.itemsize,
    "T": lambda x, xp: x.T,
    "real": lambda x, xp: x.real,
    "flat": lambda x, xp: list(x.flat)[:3],
    "no such attribute": lambda x, xp: x.no_such_attribute,
    # methods
    "sum": lambda x, xp: x.sum(axis=0),
    "max": lambda x, xp: x.max(axis=1),
    "astype": lambda x, xp: x.astype(np.int8),
    "reshape": lambda x, xp: x.reshape(4, -1),
    "item": lambda x, xp: x[0, 1].item(),
    "tolist": lambda x, xp: x.tolist(),
    "tobytes": lambda x, xp: x.tobytes(),
    "view": lambda x, xp: x.view(np.int32),
    # functions of the library
    "asarray": lambda x, xp: xp.asarray(x),
    "array of a type": lambda x, xp: xp.array(x, np.int16),
    "array of two": lambda x, xp: xp.array([x, x]),
    "sin": lambda x, xp: xp.sin(x),
    "maximum": lambda x, xp: xp.maximum(x, 3),
    "xp.matmul": lambda x, xp: xp.matmul(x, x.T),
    "concatenate": lambda x, xp: xp.concatenate([x, x]),
    "split": lambda x, xp: xp.split(x, 2, axis=1),
    "where": lambda x, xp: xp.where(x > 2, x, 0),
    "zeros_like": lambda x, xp: xp.zeros_like(x),
    "xp.shape": lambda x, xp: xp.shape(x),
    "result_type": lambda x, xp: xp.result_type(x, np.int8),
    "array_equal": lambda x, xp: xp.array_equal(x, x),
    # numpy's functions, whatever the array
    "np.asarray": lambda x, xp: np.asarray(x),
    "np.array of a type": lambda x, xp: np.array(x, np.float64),
    "np.sin": lambda x, xp: np.sin(x),
    "np.concatenate": lambda x, xp: np.concatenate([x, x]),
    "np.add.reduce": lambda x, xp: np.add.reduce(x),
    "np.testing": lambda x, xp: np.testing.assert_array_equal(x, x),
    "np.from_dlpack": lambda x, xp: np.from_dlpack(x),
    # copies
    "copy.copy": lambda x, xp: copy.copy(x),
    "copy.deepcopy": lambda x, xp: copy.deepcopy({"a": x}),
    "pickle": lambda x, xp: pickle.loads(pickle.dumps([x, x])),
}

NUMPY: dict[str, Operation] = {
    "out": lambda x, xp: np.add(x, 1, out=np.zeros((3, 4))),
    "ufunc.at": lambda x, xp: np.add.at(np.zeros(20), x.astype(int), 1),
    "flags": lambda x, xp: x.flags.c_contiguous,
    "strides": lambda x, xp: x.strides,
    "no at": lambda x, xp: x.at,
}

JAX: dict[str, Operation] = {
    "at": lambda x, xp: x.at[0, 0].set(5),
    "at by it": lambda x, xp: xp.zeros(20).at[x.astype(int)].add(x),
    "devices": lambda x, xp: x.devices(),
    "sharding": lambda x, xp: x.sharding,
    "aval": lambda x, xp: x.aval,
    "weak_type": lambda x, xp: x.weak_type,
    "addressable_shards": lambda x, xp: x.addressable_shards[0].data,
    "addressable_data": lambda x, xp: x.addressable_data(0),
    "round": lambda x, xp: round(x),
    "no flags": lambda x, xp: x.flags,
}


WITH_JAX: tuple[str, ...] = (
    *("x + 1", "x + array", "array + x", "numpy + x", "scalar + x", "1 / x", "rdivmod"),
    *("numpy @ x", "x == None", "~", "x += 1", "in place on numpy", "element", "ellipsis"),
    *("list of rows", "by itself", "numpy by it", "too many", "past the end", "by a float"),
    *("step 0", "list", "reversed", "in", "sum of rows", "float", "float of many", "int", "bool"),
    *("bool of many", "complex", "str", "format of a number", "format of many", "hash", "shape"),
    *("dtype", "T", "real", "flat", "no such attribute", "sum", "astype", "item", "tolist"),
    *("tobytes", "view", "asarray", "array of a type", "array of two", "sin", "maximum"),
    *("xp.matmul", "concatenate", "split", "where", "zeros_like", "xp.shape", "result_type"),
    *("array_equal", "np.asarray", "np.array of a type", "np.sin", "np.concatenate"),
    *("np.add.reduce", "np.testing", "np.from_dlpack", "copy.copy", "copy.deepcopy", "pickle"),
)
"""Those of `ANY` that take a way of their own where the process has jax, one of each."""


def outcome(operation: Operation, x: Any, xp: Any) -> Any:
    """The result, or the type of the error."""
    try:
        return operation(x, xp)
    except Exception as error:  # noqa: BLE001  both raise alike
        return type(error)
