"""A transformed function, as one that jax can trace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

from jaxd_protocol.jit.transforms.flat_functions import STAGES, has_data
from jaxd_protocol.jit.transforms.transform_literals import (
    ON_INSTANCE,
    Transformation,
    decode_transformation,
    display_name,
)
from jaxd_protocol.pickling.names import HERE

if TYPE_CHECKING:
    import inspect


_Function = Callable[..., Any]
_Static = tuple[tuple[int, str], ...]
"""Position and name of each argument that is static and can be given by position, in order."""


class TransformedFunction:
    """What `jax.vmap(jax.grad(f))` and the like return, made when it is called.

    It needs jax only then, and is pickled as the function and the transformations.
    """

    __slots__ = ("__weakref__", "function", "transformations")

    def __init__(self, function: _Function, transformations: Sequence[Transformation]) -> None:
        self.function = function
        self.transformations = tuple(transformations)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the transformed function.

        Returns:
            What jax would return, with None where it has `float0`: there is no derivative.

        Raises:
            Exception: what jax raises for the options or the arguments.
        """
        import jax

        result = _apply(self.function, self.transformations)(*args, **kwargs)
        return jax.tree.map(lambda leaf: leaf if has_data(leaf) else None, result)

    def __getattr__(self, name: str) -> Any:
        # Computed at each access: only the function and the transformations are pickled.
        if name in ("__name__", "__qualname__"):
            function = self.function
            plain = getattr(function, name, None) or type(function).__qualname__
            return display_name(plain, self.transformations)
        if name == "__signature__":
            return _signature(self.function, self.transformations)
        raise AttributeError(name)

    def __repr__(self) -> str:
        return display_name(repr(self.function), self.transformations)


def apply_transformations(
    function: _Function, transformations: Sequence[Transformation]
) -> _Function:
    """The function under these transformations; itself when there are none."""
    return TransformedFunction(function, transformations) if transformations else function


def untransformed(function: _Function) -> _Function:
    """The function without its transformations."""
    return function.function if type(function) is TransformedFunction else function


def _signature(function: _Function, transformations: Sequence[Transformation]) -> inspect.Signature:
    """The signature of the function, as the transformations change it.

    Raises:
        AttributeError: when the function has none.
    """
    import inspect

    try:
        found = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise AttributeError("__signature__") from error
    return _changed(found, transformations)


def _of_method(
    found: inspect.Signature, transformations: Sequence[Transformation]
) -> inspect.Signature:
    """The signature of a method after transformations, with its instance as first parameter."""
    first, *rest = found.parameters.values()
    if first.kind.name == "VAR_POSITIONAL":
        return _changed(found, transformations)
    changed = _changed(found.replace(parameters=rest), transformations)
    return changed.replace(parameters=[first, *changed.parameters.values()])


def _changed(
    found: inspect.Signature, transformations: Sequence[Transformation]
) -> inspect.Signature:
    import inspect

    for literal in transformations:
        name = literal[0]
        if name == ON_INSTANCE:
            found = _of_method(found, decode_transformation(literal)[1]["by"])
        elif name == "flat" and "behind" not in found.parameters:
            behind = inspect.Parameter("behind", inspect.Parameter.POSITIONAL_ONLY)
            found = found.replace(parameters=[behind, *found.parameters.values()])
        elif name in _SIGNATURES:
            found = inspect.signature(_SIGNATURES[name])
    return found


def _apply(function: _Function, transformations: Sequence[Transformation]) -> _Function:
    for literal in transformations:
        name, options = decode_transformation(literal)
        function = _APPLY[name](function, **options)
    return function


def _on_instance(function: _Function, *, by: Sequence[Transformation]) -> _Function:
    """A function that closes over its first argument, as jax does over a method's instance."""

    def method(instance: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _apply(MethodType(function, instance), by)(*args, **kwargs)

    return method


def _of_jax(name: str) -> Callable[..., _Function]:
    def apply(function: _Function, **options: Any) -> _Function:
        import jax

        made: _Function = getattr(jax, name)(function, **options)
        return made

    return apply


def _vmap(
    function: _Function,
    *,
    static_argnums: tuple[int, ...],
    static_argnames: tuple[str, ...],
    in_axes: Any,
    **options: Any,
) -> _Function:
    """`jax.vmap`, for which static arguments have no axis, and need none."""

    def mapped(*args: Any, **kwargs: Any) -> Any:
        import jax

        static = {name: kwargs.pop(name) for name in static_argnames if name in kwargs}
        axes = in_axes
        numbers = {n + len(args) if n < 0 else n for n in static_argnums}
        if type(axes) is int and not numbers.isdisjoint(range(len(args))):
            axes = tuple(None if i in numbers else axes for i in range(len(args)))
        bound = functools.partial(function, **static) if static else function
        return jax.vmap(bound, in_axes=axes, **options)(*args, **kwargs)

    return mapped


def _jvp(function: _Function, *, has_aux: bool, static: _Static) -> _Function:
    def jvp(primals: Any, tangents: Any, **kwargs: Any) -> Any:
        import jax

        if isinstance(primals, tuple | list) and type(primals) is type(tangents):
            pairs = zip(primals, tangents, strict=False)
            given = [_zeros(x) if t is None and x is not None else t for x, t in pairs]
            tangents = type(tangents)([*given, *tangents[len(given) :]])
        return jax.jvp(_bound(function, kwargs, static), primals, tangents, has_aux=has_aux)

    return jvp


def _zeros(primal: Any) -> Any:
    """The tangent of an argument that is held fixed."""
    import jax
    import numpy

    def zeros(leaf: Any) -> Any:
        if jax.numpy.issubdtype(jax.numpy.result_type(leaf), numpy.inexact):
            return jax.numpy.zeros_like(leaf)
        return numpy.zeros(jax.numpy.shape(leaf), jax.dtypes.float0)

    return jax.tree.map(zeros, primal)


def _vjp(function: _Function, *, has_aux: bool, static: _Static) -> _Function:
    def vjp(primals: Any, cotangents: Any, **kwargs: Any) -> Any:
        import jax

        pulled_back: Any = jax.vjp
        bound = _bound(function, kwargs, static)
        _, pull_back, *_ = pulled_back(bound, *primals, has_aux=has_aux)
        return pull_back(cotangents)

    return vjp


def _bound(function: _Function, kwargs: dict[str, Any], static: _Static) -> _Function:
    """The function of the primals alone; static arguments are inserted at their positions."""
    if not kwargs:
        return function

    def bound(*primals: Any) -> Any:
        args, named = list(primals), dict(kwargs)
        for position, name in static:
            if name in named and position <= len(args):
                args.insert(position, named.pop(name))
        return function(*args, **named)

    return bound


_APPLY: Final[dict[str, Callable[..., _Function]]] = {
    **{name: _of_jax(name) for name in ("grad", "value_and_grad", "jacfwd", "jacrev", "hessian")},
    ON_INSTANCE: _on_instance,
    "vmap": _vmap,
    "jvp": _jvp,
    "vjp": _vjp,
    **STAGES,
}


def _as_jvp(primals: Any, tangents: Any, **kwargs: Any) -> Any: ...


def _as_vjp(primals: Any, cotangents: Any, **kwargs: Any) -> Any: ...


def _as_flat(behind: Any, /, *args: Any, **kwargs: Any) -> Any: ...


_SIGNATURES: Final[dict[str, _Function]] = {"jvp": _as_jvp, "vjp": _as_vjp, "flat": _as_flat}


class Batched:
    """Calls a function on each example of a batch, at most `size` of them at once.

    Args:
        function: takes one example.
        size: of a batch.
        axes: as `in_axes` of `jax.vmap`, unless each call gives it for each leaf.
    """

    __module__ = HERE  # keys and packed bytes name it

    def __init__(self, function: Callable[..., Any], size: int, axes: Any = None) -> None:
        self.function = function
        self.size = size
        self.axes = tuple(axes) if isinstance(axes, list) else axes
        self.__name__ = self.__qualname__ = getattr(function, "__name__", type(function).__name__)

    def __call__(
        self, flags: tuple[bool, ...] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The results of all examples, along a first axis.

        Args:
            flags: for each leaf of the arguments whether its first axis counts examples; None:
                `axes` decides, and arguments by name have their examples along the first axis.
            args: positional arguments.
            kwargs: those by name.

        Raises:
            ValueError: as `jax.vmap`, when the arguments do not fit.
        """
        import jax

        if flags is None:
            axes = _axes_of(jax, self.axes, args, kwargs)
        else:
            axes = [0 if batched else None for batched in flags]
        leaves, structure = jax.tree.flatten((args, kwargs))
        many = [
            jax.numpy.moveaxis(leaf, axis, 0)
            for leaf, axis in zip(leaves, axes, strict=True)
            if axis is not None
        ]

        def one(rows: Sequence[Any]) -> Any:
            rest = iter(rows)
            whole = [
                leaf if axis is None else next(rest)
                for leaf, axis in zip(leaves, axes, strict=True)
            ]
            args, kwargs = jax.tree.unflatten(structure, whole)
            return self.function(*args, **kwargs)

        if many and all(len(leaf) > self.size for leaf in many):
            return jax.lax.map(one, many, batch_size=self.size)
        return jax.vmap(one)(many)


def _axes_of(jax: Any, axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """For each leaf its axis, or None."""
    none = object()

    def spread(axis: Any, part: Any) -> Any:
        return jax.tree.map(lambda _: none if axis is None else axis, part)

    by_place = jax.tree.map(spread, axes, args, is_leaf=lambda axis: axis is None)
    by_name = jax.tree.map(lambda _: 0, kwargs)
    found = [*jax.tree.leaves(by_place), *jax.tree.leaves(by_name)]
    return [None if axis is none else axis for axis in found]
