from __future__ import annotations

from typing import Any

import pytest

from jaxd_protocol.jit.options import Options, function_key
from jaxd_protocol.jit.transforms import encode_transformation
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_server.compilation.functions.function import Described, Function
from jaxd_server.compilation.functions.receive import UnpackedFunction

FINGERPRINT = b"f" * 16
SHARED = FunctionManifest(FINGERPRINT, b"", (), {}, {}, frozenset(), (), True)
GRAD = Options(transformations=(encode_transformation("grad", {"argnums": 0}),))


def square(x: Any) -> Any:
    """Something to call."""
    return x * x


def of(options: Options | None = None, manifest: FunctionManifest | None = SHARED) -> Function:
    """A function that nobody has needed so far."""
    options = Options() if options is None else options
    described = Described(FINGERPRINT, "square", options, manifest)
    return Function(function_key(FINGERPRINT, options), described)


def test_what_is_called_is_what_arrived_behind_its_transformations() -> None:
    """And so it is named."""
    plain, slope = of(), of(GRAD)
    plain.unpacked = slope.unpacked = UnpackedFunction(square)
    assert (plain.name, slope.name) == ("square", "grad(square)")
    assert plain.function is square
    assert float(slope.function(3.0)) == 6.0
    assert float(slope.traceable(3.0)) == 6.0
    assert plain.captured is plain.unpacked.captured


def test_nothing_is_called_before_it_was_unpacked() -> None:
    """Whoever forgets that is told."""
    function = of()
    with pytest.raises(AssertionError, match="unpack comes first"):
        function.function  # noqa: B018


def test_on_no_device_in_particular_it_has_one_key() -> None:
    """Of a function in doubt nothing is known: its key stays its own."""
    plain, there = of(), of(Options(device=2))
    assert there.key != plain.key
    assert (there.plain_key, plain.plain_key) == (plain.key, plain.key)
    there.unpacked = UnpackedFunction(square, doubt="it came changed")
    assert there.plain_key == there.key


def test_what_means_the_same_everywhere_may_be_kept() -> None:
    """Not what only its own process can name, and not what is in doubt."""
    lasting, doubted = of(), of()
    doubted.unpacked = UnpackedFunction(square, doubt="it came changed")
    private, bytes_only = of(manifest=SHARED._replace(shared=False)), of(manifest=None)
    found = [one.is_lasting for one in (lasting, doubted, private, bytes_only)]
    assert found == [True, False, False, False]
