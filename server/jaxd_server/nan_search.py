"""Where the first NaN comes from."""

from __future__ import annotations

from jaxd_server.call import Call
from jaxd_server.executables import Executables
from jaxd_server.functions import FunctionReplaced, Functions
from jaxd_server.jax_config import configured
from jaxd_server.marshal import jax_arrays

__all__ = ["find_nan"]


def find_nan(call: Call, functions: Functions, executables: Executables) -> FloatingPointError:
    """Runs the function step by step, so that the line is seen that makes the first NaN.

    Returns:
        What there is to say when there is none that way.

    Raises:
        FloatingPointError: at that line.
    """
    function = functions.obtain(call.key, call.source)
    try:
        functions.unpack(function, call.source)
    except FunctionReplaced:
        function = functions.obtain(call.key, call.source)
    layout = executables.layout(call.key, call.skeleton)
    arguments = layout.build(call.leaves(layout))
    with configured(function.options.config):
        args, kwargs = jax_arrays(arguments, function.statics)
        function.function(*args, **kwargs)
    return FloatingPointError(
        f"invalid value (nan or inf) in the result of {function.name}, but not when it is run "
        "step by step: the compiler has put steps together. Look at values that are nearly "
        "too large."
    )
