"""`jaxd.vmap_auto`: applies a function of one example to batches of examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Unpack

from jaxd.api.decorator import CallOptions, persistent_call
from jaxd.interop.jax_runtime import loaded_jax
from jaxd_protocol.errors import ArgumentError, ConfigurationError

_UNSUPPORTED_OPTIONS: Final = (
    *("static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "static"),
    *("in_shardings", "out_shardings"),
)
_MAX_KNOWN: Final = 256


def vmap_auto(
    function: Callable[..., Any],
    batch_size: int,
    in_axes: Any = "auto",
    **options: Unpack[CallOptions],
) -> BatchedFunction:
    """Makes a function of one example run on batches of examples, on a server.

    Which arguments are batched is seen from their shapes: each array, anywhere in the arguments,
    whose first axis has `batch_size` entries. All others, numbers and text among them, are the
    same for each example. Results come along a first axis.

    The last batch may have fewer examples: arguments of the same structure are batched as they
    were in a full batch. What has more examples is processed in batches of `batch_size`.

    Args:
        function: takes one example; may be a persistent function.
        batch_size: examples in a full batch, and the most that are worked on at once.
        in_axes: instead of looking at shapes, what is batched and along which axis, as for
            `jax.vmap`. Then arguments given by name have their examples along the first axis.
        **options: see `CallOptions`; what jax cannot trace is static by itself.

    Raises:
        ConfigurationError: when `batch_size` is no positive number, or an option cannot be used.
    """
    if type(batch_size) is not int or batch_size < 1:
        raise ConfigurationError(
            f"batch_size={batch_size!r} is no number of examples. Give a positive integer."
        )
    for name in _UNSUPPORTED_OPTIONS:
        if name in options:
            raise ConfigurationError(
                f"{name} has no meaning for batches. Leave it out: what jax cannot trace is static."
            )
    return BatchedFunction(function, batch_size, in_axes, options)


class BatchedFunction:
    """A function on batches; made by `vmap_auto`. Thread-safe."""

    def __init__(
        self,
        function: Callable[..., Any],
        batch_size: int,
        in_axes: Any,
        options: CallOptions,
    ) -> None:
        from jaxd_protocol.jit.transforms.transformed_function import Batched

        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self._size = batch_size
        self._has_batch_size = not (isinstance(in_axes, str) and in_axes == "auto")
        batched = Batched(function, batch_size, in_axes if self._has_batch_size else None)
        self._known: dict[Any, tuple[bool, ...]] = {}
        given: CallOptions = {**options, "static_argnums": 0}
        self._call = persistent_call(batched, **given)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of all examples, along a first axis.

        Raises:
            ArgumentError: when it cannot be seen what is batched.
            BaseException, JaxdError: as a call of a persistent function.
        """
        flags = None if self._has_batch_size else self._batched(args, kwargs)
        return self._call(flags, args, kwargs)

    def __repr__(self) -> str:
        return f"<batches of {self._size} for {self.__wrapped__!r}>"

    def _batched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, ...]:
        """For each leaf whether it is batched."""
        leaves, structure = _flatten((args, kwargs))
        form = (structure, tuple(len(getattr(leaf, "shape", ())) for leaf in leaves))
        rows = [_batch_length(leaf) for leaf in leaves]
        known = self._known.get(form)
        if known is None:
            known = tuple(count == self._size for count in rows)
            if not any(known):
                raise ArgumentError(
                    f"no array has {self._size} entries along its first axis, so it cannot be seen "
                    "what is batched. Call it with a full batch first, or say it with in_axes=, as "
                    "for jax.vmap."
                )
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[form] = known
        counts = {count for count, batched in zip(rows, known, strict=True) if batched}
        if len(counts) != 1:
            raise ArgumentError(
                f"what is batched has {' and '.join(map(str, sorted(counts)))} examples. Give the "
                "same number of each, or say what is batched with in_axes=, as for jax.vmap."
            )
        return known


def _batch_length(leaf: Any) -> int:
    """Entries along its first axis; -1 when it has none."""
    shape = getattr(leaf, "shape", None)
    return int(shape[0]) if isinstance(shape, Sequence) and len(shape) else -1


def _flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves in jax's order, and something that is equal for trees of the same structure."""
    jax = loaded_jax()
    if jax is not None:
        leaves, structure = jax.tree.flatten(tree)
        return leaves, structure
    found: list[Any] = []
    return found, _structure(tree, found)


def _structure(tree: Any, leaves: list[Any]) -> Any:
    if tree is None:
        return None
    kind = type(tree)
    if isinstance(tree, dict):
        keys = sorted(tree) if kind is dict else list(tree)
        return kind, tuple((key, _structure(tree[key], leaves)) for key in keys)
    if kind in (list, tuple) or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        return kind, tuple(_structure(child, leaves) for child in tree)
    leaves.append(tree)
    return "*"
