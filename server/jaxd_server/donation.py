"""Which arguments of a call are given up, as `jax.jit` infers it from the function's signature."""

from __future__ import annotations

from collections.abc import Sequence

from jaxd_protocol.jit_options import Options
from jaxd_protocol.trees import Layout
from jaxd_server.marshal import leaves_of

__all__ = ["donated_leaves"]


def donated_leaves(layout: Layout, options: Options, parameters: Sequence[str]) -> frozenset[int]:
    """The numbers of the leaves that calls with this layout donate.

    As jax, none for negative numbers, and none while it looks for NaNs: it may have to run again.

    Args:
        layout: of the arguments.
        options: those of the function.
        parameters: names of the parameters that can be given by position.
    """
    nums, names = options.donate_argnums, options.donate_argnames
    if not (nums or names) or ("jax_debug_nans", True) in options.config:
        return frozenset()
    if nums is None:
        nums = tuple(i for i, name in enumerate(parameters) if name in (names or ()))
    positions = set(nums)
    if names is None:
        names = tuple(name for i, name in enumerate(parameters) if i in positions)
    args, kwargs = layout.outline([_Numbered(i) for i in range(len(layout.leaves))])
    given = tuple(value for i, value in enumerate(args) if i in positions)
    named = {name: value for name, value in kwargs.items() if name in names}
    found = leaves_of((given, named))
    return frozenset(leaf.number for leaf in found if isinstance(leaf, _Numbered))


class _Numbered:
    """Stands for one leaf."""

    def __init__(self, number: int) -> None:
        self.number = number
