"""Error messages for arrays that are no longer on the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jaxd_protocol.errors import ValuesDied, ValuesLost

if TYPE_CHECKING:
    from jaxd.interop.remote_array import RemoteArray
    from jaxd.request.call_request import CallRequest


_SHOWN: Final = 4
_ADVICE: Final = "Make them again, or restore the state from a checkpoint."


def values_lost_error(*, with_worker: bool, notice: str = "") -> ValuesLost:
    """The error for all arrays of a session that has ended.

    Args:
        with_worker: whether its worker has ended as well.
        notice: what the server says of that.
    """
    if with_worker:
        how = f", {notice}" if notice else ""
        return ValuesDied(f"arrays on the server died with its worker{how}. {_ADVICE}")
    return ValuesLost(
        "arrays on the server are gone: it gave them up after --session-grace-s without a "
        f"connection. {_ADVICE}"
    )


def unanswered_call_error(name: str) -> ValuesLost:
    """The error of a call that was given arrays for good, and whose reply will not come.

    Args:
        name: of its function.
    """
    return ValuesLost(
        f"{name} was sent with arrays that it was given for good (donated), and its answer did not "
        "come before the connection was given up: whether it has run is not known, and they cannot "
        f"be used any more. {_ADVICE}"
    )


def with_array_names(
    error: ValuesLost, arrays: Sequence[RemoteArray], needed_by: str = "this process"
) -> ValuesLost:
    """The same error, with the needed arrays in its message.

    Args:
        error: why the arrays are gone.
        arrays: the needed arrays.
        needed_by: the name of what needs them.
    """
    kinds = Counter(f"{array.dtype}[{','.join(map(str, array.shape))}]" for array in arrays)
    shown = [
        kind if count == 1 else f"{count} of {kind}" for kind, count in kinds.most_common(_SHOWN)
    ]
    more = len(kinds) - len(shown)
    rest = f" and {more} other kinds" if more else ""
    what, _, advice = str(error).partition(". ")
    what = what.partition("; ")[0]  # without the arrays that were named before
    needs = f"{needed_by} needs {len(arrays)} of them: {', '.join(shown)}{rest}"
    return type(error)(f"{what}; {needs}. {advice}")


def with_call_array_names(error: ValuesLost, call: CallRequest) -> ValuesLost:
    """As `with_array_names`, of the arrays that a call needs."""
    arrays = [array for handle_range in call.values for array in handle_range.arrays]
    return with_array_names(error, arrays, call.spec.snapshot.name)
