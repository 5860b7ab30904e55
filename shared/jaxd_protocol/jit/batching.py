"""A function of one example, run over many of them where jax is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxd_protocol.pickling.names import HERE


class Batched:
    """Calls a function on each example of a batch, at most `size` of them at once.

    Args:
        function: takes one example.
        size: of a batch.
        axes: as `in_axes` of `jax.vmap`, if each call does not say it of each leaf.
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
                `axes` says it, and arguments by name have their examples along the first axis.
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
