"""Transformations of a function of arrays alone, as a client's own jax requests them.

When a client differentiates or maps code that calls a persistent function, its jax has a rule for
each step: what the step makes of the leaves of the arguments. The server applies those rules here,
one after the other.

    flat            inputs: of each leaf, in jax's order, "" for an array, the name of a generator
                    for the numbers of random keys, None for what is not transformed
                    sent: which of the inputs are in the call; the others have placeholders there
    flat_vmap       axes: of each input, or None
                    out_axes: of each output 0, or None for one that is the same for all; where it
                    is left out, they are all 0
    flat_jvp        given: of each input, whether a tangent of it follows the inputs
    flat_transpose  linear: of each input, whether the function is linear in it; shapes: of those,
                    shape, dtype and weak type; given: of each output, whether a cotangent of it
                    follows the other inputs

A flat function is called as `call(behind, *args, **kwargs)`: the arguments of the function itself,
and a tuple of what follows them. It returns a tuple of arrays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

_LeafFunction = Callable[..., Sequence[Any]]
_Stage = Callable[[_LeafFunction], _LeafFunction]


class FlatFunction:
    """A function of the leaves of its arguments, with some stages applied."""

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[str | None],
        sent: Sequence[int],
        static_argnums: Sequence[int],
        static_argnames: Sequence[str],
    ) -> None:
        self._function = function
        self._inputs = inputs
        self._sent = sent
        self._argnums = frozenset(static_argnums)
        self._argnames = frozenset(static_argnames)
        self._stages: tuple[_Stage, ...] = ()

    def with_stage(self, stage: _Stage) -> FlatFunction:
        """The same with one more stage."""
        found = copy.copy(self)
        found._stages = (*self._stages, stage)
        return found

    def __call__(self, behind: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls it with arguments like the function's own, and the further arrays `behind` them."""
        import jax

        traced = (
            [value for i, value in enumerate(args) if i not in self._argnums],
            {name: value for name, value in kwargs.items() if name not in self._argnames},
        )
        leaves, structure = jax.tree.flatten(traced)
        places = [place for place, kind in enumerate(self._inputs) if kind is not None]

        def of_inputs(*inputs: Any) -> Sequence[Any]:
            found = list(leaves)
            for place, value in zip(places, inputs, strict=True):
                found[place] = _as_array(value, self._inputs[place])
            positional, named = jax.tree.unflatten(structure, found)
            waiting = iter(positional)
            every = [x if i in self._argnums else next(waiting) for i, x in enumerate(args)]
            result = self._function(*every, **{**kwargs, **named})
            return [_as_numbers(leaf) for leaf in jax.tree.leaves(result) if has_data(leaf)]

        inner: _LeafFunction = of_inputs
        for stage in self._stages:
            inner = stage(inner)
        given = [_as_numbers(leaves[places[number]]) for number in self._sent]
        return tuple(inner(*given, *behind))


def _as_array(value: Any, kind: str | None) -> Any:
    """An array, or random keys over it."""
    import jax

    return jax.random.wrap_key_data(value, impl=kind) if kind else value


def _as_numbers(leaf: Any) -> Any:
    """An array: of random keys their numbers."""
    import jax

    leaf = jax.numpy.asarray(leaf)
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf


def has_data(leaf: Any) -> bool:
    """Whether a leaf is anything else than `float0`, jax's dtype of what has no derivative."""
    import jax

    return getattr(leaf, "dtype", None) != jax.dtypes.float0


def _mapped(
    inner: _LeafFunction,
    *,
    axes: Sequence[int | None],
    out_axes: Sequence[int | None] | None = None,
) -> _LeafFunction:
    import jax

    return jax.vmap(
        lambda *inputs: list(inner(*inputs)),
        in_axes=tuple(axes),
        out_axes=0 if out_axes is None else list(out_axes),
    )


def _differentiated(inner: _LeafFunction, *, given: Sequence[bool]) -> _LeafFunction:
    """The tangents of those outputs that have one."""

    def tangents_of(*args: Any) -> Sequence[Any]:
        import jax

        primals, tangents = args[: len(given)], args[len(given) :]

        moving = tuple(_with(given, primals))
        fixed = [value for has, value in zip(given, primals, strict=True) if not has]

        def of_moving(*moving: Any) -> Sequence[Any]:
            outputs = inner(*_merged(given, moving, fixed))
            return [x for x in outputs if jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)]

        found: Sequence[Any] = jax.jvp(of_moving, moving, tangents)[1]
        return found

    return tangents_of


def _transposed(
    inner: _LeafFunction,
    *,
    linear: Sequence[bool],
    shapes: Sequence[tuple[tuple[int, ...], str, bool]],
    given: Sequence[bool],
) -> _LeafFunction:
    """The cotangents of what the function is linear in."""

    def cotangents_of(*args: Any) -> Sequence[Any]:
        import jax

        spec: Any = jax.core.ShapedArray  # a `ShapeDtypeStruct` has no 64 bits outside enable_x64
        count = list(linear).count(False)
        rest, cotangents = args[:count], args[count:]

        def of_linear(*moving: Any) -> Sequence[Any]:
            return list(_with(given, inner(*_merged(linear, moving, rest))))

        specs = [spec(shape, jax.numpy.dtype(name), weak_type=weak) for shape, name, weak in shapes]
        found: Sequence[Any] = jax.linear_transpose(of_linear, *specs)(list(cotangents))
        return found

    return cotangents_of


def _merged(mask: Sequence[bool], those: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    yes, no = iter(those), iter(others)
    return [next(yes) if chosen else next(no) for chosen in mask]


def _with(mask: Sequence[bool], values: Sequence[Any]) -> list[Any]:
    return [value for chosen, value in zip(mask, values, strict=True) if chosen]


def _staged(make: Callable[..., _LeafFunction]) -> Callable[..., FlatFunction]:
    def behind(flat: FlatFunction, **options: Any) -> FlatFunction:
        return flat.with_stage(partial(make, **options))

    return behind


STAGES: Final[dict[str, Callable[..., FlatFunction]]] = {
    "flat": FlatFunction,
    "flat_vmap": _staged(_mapped),
    "flat_jvp": _staged(_differentiated),
    "flat_transpose": _staged(_transposed),
}
"""What makes the flat function of each transformation from the one before it."""
