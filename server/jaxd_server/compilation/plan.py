"""What is known about calls whose arguments have the same bytes beside their data."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from jaxd_protocol.pytree import Layout
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.jax_compat.placement import ArrayPlaces
from jaxd_server.runtime.threads.cancellation import NEVER_CANCELLED, CancelToken


class PlacementMismatch(Exception):
    """The arrays of a call are on other devices than those of its plan."""


class DeviceChoice(NamedTuple):
    """Where a call runs, by the indexes of devices, and who waits for it.

    Attributes:
        device: the one that the call runs on.
        session: the one that its session's calls run on, unless their function says another.
        cancel_token: whether anybody still waits for it.
        owner: whose turn a build for it takes.
    """

    device: int = 0
    session: int = 0
    cancel_token: CancelToken = NEVER_CANCELLED
    owner: Hashable = None


ANY_DEVICE: Final = DeviceChoice()
"""Where there is nothing to choose."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known about calls with one skeleton.

    Attributes:
        layout: how to read their arguments.
        executable: what answers them; None when pickled arguments have to be looked at each time.
        order: for each array that the executable takes, its number among the leaves of the call.
        donated: numbers of the leaves that such a call gives up.
        places: where its arrays have to lie that were put somewhere; see `places_of`.
    """

    layout: Layout
    executable: Executable | None
    order: tuple[int, ...] = ()
    donated: frozenset[int] = frozenset()
    places: ArrayPlaces = ()

    def arrange(self, leaves: list[Any]) -> list[Any]:
        """The leaves of a call as its executable takes them."""
        return [leaves[index] for index in self.order]
