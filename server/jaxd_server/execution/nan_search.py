"""Where the first NaN comes from."""

from __future__ import annotations

from jaxd_protocol.errors import CallbackError
from jaxd_server.codec.arguments import build_arguments, jax_arrays
from jaxd_server.compilation.executables import Executables
from jaxd_server.compilation.functions.table import FunctionReplaced, Functions
from jaxd_server.execution.call import Call
from jaxd_server.jax_compat.config import configured
from jaxd_server.runtime.events import SILENT
from jaxd_server.user_code.jax_callbacks import callbacks_disabled
from jaxd_server.user_code.output import CallOutput, output_to


def find_nan(call: Call, functions: Functions, executables: Executables) -> FloatingPointError:
    """Runs the function step by step, so that the line is seen that makes the first NaN.

    What it prints is not heard twice, and nothing of the client's is called twice.

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
    arguments = build_arguments(layout, call.leaves(layout), function.statics)
    why_not = (
        "but not when it is run step by step: the compiler has put steps together. Look at values "
        "that are nearly too large."
    )
    with configured(function.options.config), output_to(CallOutput(SILENT)), callbacks_disabled():
        args, kwargs = jax_arrays(arguments, function.statics)
        try:
            function.traceable(*args, **kwargs)
        except CallbackError:
            why_not = (
                "and it cannot be run step by step to find the line, because its io_callback must "
                "not run twice. Leave that out, or look with JAXD_INLINE=1."
            )
    return FloatingPointError(
        f"invalid value (nan or inf) in the result of {function.name}, {why_not}"
    )
