"""The private names of jax around programs that were loaded, and that run in this process.

`FastCalls` is jax's own dispatch, written in C++: where it knows the types, shapes and settings of
a call, no Python runs between the call and the program, as under `jax.jit`. Where a name has moved
in a newer jax there is none, and such calls go by way of Python.

Verified on jax 0.10.2 and 0.11.2 by tests/client/interop/test_local_programs.py.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from jaxd.interop.jax_runtime import loaded_jax

UNKNOWN: Final = object()
"""What `FastCalls` return for a call of a kind that was not added."""


class LocalProgram:
    """A compiled program: flat arrays in, flat arrays out.

    Args:
        compiled: what jax has loaded, a `jax.stages.Compiled` of flat lists.

    Attributes:
        compiled: the same.
        id: sixteen bytes that equal programs have in common.
    """

    def __init__(self, compiled: Any, id: bytes) -> None:  # noqa: A002
        self.compiled = compiled
        self.id = id
        self._taken = [(tuple(each.shape), each.dtype) for each in compiled.args_info[0]]

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """Runs it; jax may return before the device is done."""
        made: list[Any] = self.compiled(*leaves)
        return made

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Whether it takes such leaves, as they are and where they lie.

        An array of 64 bits is none of 32 to jax, and one that was put on another device stays.
        """
        if len(leaves) != len(self._taken):
            return False
        jax = loaded_jax()
        here, canonical = {jax.devices()[0]}, jax.dtypes.canonicalize_dtype
        for leaf, (shape, dtype) in zip(leaves, self._taken, strict=True):
            found = getattr(leaf, "dtype", None)
            if found is None:
                continue  # a number, which is as wide as jax's settings say
            if not isinstance(leaf, jax.Array):
                found = canonical(found)
            elif leaf.committed and leaf.devices() != here:
                return False
            if found != dtype or tuple(leaf.shape) != shape:
                return False
        return True


class FastCalls:
    """Calls of one function that jax dispatches by itself, each kind to its program.

    A kind is what jax compiles for: structure, shapes, dtypes, weak types, where arrays lie, and
    the settings of the thread. Thread-safe.

    Args:
        name: of the function.

    Raises:
        Exception: when this version of jax has no such thing.
    """

    def __init__(self, name: str) -> None:
        pjit = sys.modules["jax._src.pjit"]
        pxla = sys.modules["jax._src.interpreters.pxla"]
        self._fast_path: Callable[..., Any] = pjit._get_fastpath_data  # noqa: SLF001
        self._added = threading.local()  # what the call that runs now is to be added with
        self.call: Callable[..., Any] = sys.modules["jaxlib._jax"].pjit(
            name,
            None,
            self._miss,
            [],
            [],
            pxla.JitGlobalCppCacheKeys(),
            sys.modules["jax._src.tree_util"].dispatch_registry,
            pxla.cc_shard_arg,
        )

    def add(
        self, program: LocalProgram, structure: Any, args: Iterable[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Makes a call, and dispatches all of its kind to its program from now on.

        Args:
            program: answers it.
            structure: that of its result.
            args: the positional arguments, which hold nothing but what jax traces.
            kwargs: those by name.
        """
        self._added.value = program, structure
        try:
            return self.call(*args, **kwargs)
        finally:
            self._added.value = None

    def _miss(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        """The result, what jax needs to make such calls by itself, and whether to forget it."""
        added = getattr(self._added, "value", None)
        if added is None:
            return UNKNOWN, None, True
        program, structure = added
        leaves = loaded_jax().tree.leaves((args, kwargs))
        made = program(leaves)
        executable = program.compiled._executable  # noqa: SLF001
        fast_path = self._fast_path(executable, structure, leaves, made, (), (), None, [])
        return structure.unflatten(made), fast_path, fast_path is None
