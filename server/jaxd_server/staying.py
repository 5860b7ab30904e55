"""What of a result stays on the server, and what of it comes home as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jaxd_protocol.elsewhere import EVERYTHING, Stay, pack_numbers
from jaxd_protocol.trees import Layout, Leaf, Placement

__all__ = ["Staying", "staying"]


class Staying(NamedTuple):
    """What of a result stays on the server.

    Attributes:
        kept: number and bytes of each leaf that stays.
        home: numbers of the leaves that come home with the reply.
        away: numbers of the others.
        told: these, packed.
        placement: where the data of those lies that come home.
        nbytes: of all that stay.
    """

    kept: tuple[tuple[int, int], ...]
    home: tuple[int, ...]
    away: tuple[int, ...]
    told: bytes
    placement: Placement
    nbytes: int


def staying(layout: Layout, stay: Stay, taken: Sequence[Leaf]) -> Staying:
    """What stays of a result.

    A leaf that looks like one of the arrays that the call took is most likely what became of that
    array: the state of a loop. It does not come home, however small, unless it is asked for; but a
    result that is small as a whole does.

    Args:
        layout: of the result.
        stay: what the client wants.
        taken: what the arrays look like that the call was given; with `EVERYTHING`, those that lay
            on the server.
    """
    sizes = [(number, leaf.nbytes) for number, leaf in enumerate(layout.leaves)]
    everything = stay.above == EVERYTHING
    is_small = not everything and sum(size for _, size in sizes) <= stay.above
    states = Counter(() if is_small else taken)
    away = []
    for number, size in sizes:
        leaf = layout.leaves[number]
        if states[leaf]:
            states[leaf] -= 1
            away.append(number)
        elif size > (stay.home if everything else stay.above):
            away.append(number)
    kept = tuple(sizes if everything else [sizes[number] for number in away])
    home = tuple(number for number, _ in sizes if number not in set(away))
    placement = layout.without(tuple(away))
    nbytes = sum(size for _, size in kept)
    return Staying(kept, home, tuple(away), pack_numbers(away), placement, nbytes)
