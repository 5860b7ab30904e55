from __future__ import annotations

import pickle
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.errors import NotPermitted, ProtocolError
from jaxd_protocol.jit.options import CONFIG_DEFAULTS, EXPORTED_CONFIG, Options, fingerprint_of
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_server.compilation.functions.function import Described
from jaxd_server.compilation.functions.receive_exported import (
    XLA_OPTIONS,
    receive_exported,
    require_harmless,
)

pytest.importorskip("flatbuffers")

NONE: frozenset[str] = frozenset()


def meaning_of(data: bytes) -> FunctionManifest:
    """What a client says of a program."""
    return FunctionManifest(fingerprint_of(data), b"", (), {}, {}, frozenset(), (), True)


def program() -> bytes:
    """One that adds one."""
    spec = jax.ShapeDtypeStruct((), np.float32)
    return bytes(jax.export.export(jax.jit(lambda x: [x + 1]))(spec).serialize())


def test_a_program_arrives() -> None:
    """Nothing of it is in doubt: its name is that of its bytes."""
    data = program()
    arrival = receive_exported(
        "f", meaning_of(data), fingerprint_of(data), memoryview(data), unchecked=NONE
    )
    assert float(jax.jit(arrival.function)(np.float32(1))[0]) == 2.0
    assert arrival.doubt is None


def test_a_function_is_refused_unopened() -> None:
    """Its fingerprint is not that of its bytes, whatever they are."""
    data = pickle.dumps(print)
    with pytest.raises(NotPermitted, match="came as a function"):
        receive_exported("f", meaning_of(data), b"f" * 16, data, unchecked=NONE)


@pytest.mark.parametrize("data", [pickle.dumps(print), b"", b"\x80\x04."])
def test_bytes_that_are_no_program_are_refused(data: bytes) -> None:
    """Though they are those that were named."""
    with pytest.raises(ProtocolError, match="cannot be read"):
        receive_exported("f", meaning_of(data), fingerprint_of(data), data, unchecked=NONE)


def test_a_client_that_says_nothing_of_it_is_refused() -> None:
    """As a stock one."""
    data = program()
    with pytest.raises(ProtocolError, match="without saying"):
        receive_exported("f", None, fingerprint_of(data), data, unchecked=NONE)


def described(**options: Any) -> Described:
    """What a client says of a program that has these options."""
    return Described(b"f" * 16, "f", Options(**options))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("xla_dump_to", "/tmp/dump"),
        ("xla_dump_hlo_pass_re", ".*"),
        ("xla_backend_extra_options", "-load=x.so"),
        ("xla_gpu_per_fusion_autotune_cache_dir", "/tmp/dump"),
        ("xla_gpu_cuda_data_dir", "/tmp/dump"),
        ("xla_gpu_kernel_cache_file", "/tmp/dump"),
        ("xla_no_such", True),
        ("fdo_profile", b"x"),
        (7, True),
        ("xla_cpu_enable_fast_math", "true"),
        ("xla_cpu_enable_fast_math", 1),
        ("xla_backend_optimization_level", True),
        ("xla_backend_optimization_level", "0"),
        ("xla_backend_optimization_level", 10**9),
        ("xla_cpu_parallel_codegen_split_count", -1),
        ("xla_backend_optimization_level", 0.5),
    ],
)
def test_an_option_of_xla_is_on_the_list_or_refused(name: Any, value: Any) -> None:
    """By its name and the type of its value; the message names it."""
    with pytest.raises(NotPermitted, match=rf"compiler_options=.*{name}.*Leave it out"):
        require_harmless(described(compiler_options=((name, value),)))


def test_options_of_xla_on_the_list_are_taken_and_known_to_it() -> None:
    """Each with a value of its type: one that XLA has renamed would be noticed here."""
    spec = jax.ShapeDtypeStruct((), np.float32)
    for name, kind in XLA_OPTIONS.items():
        require_harmless(described(compiler_options=((name, kind(1)),)))
        jitted = jax.jit(lambda x: x + 1, compiler_options={name: kind(1)})
        assert jitted.trace(spec).lower().compile()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"config": (("jax_compilation_cache_dir", "/tmp"),)}, "jax_compilation_cache_dir"),
        ({"config": (("jax_dump_ir_to", "/tmp"),)}, "jax_dump_ir_to"),
        ({"in_shardings": b"x"}, "in_shardings"),
        ({"out_shardings": b"x"}, "out_shardings"),
        ({"transformations": (("grad", ()),)}, "transformations"),
        ({"static_argnums": (0,)}, "static_argnums"),
        ({"inline": "x"}, "inline"),
    ],
)
def test_what_belongs_to_functions_is_refused(options: dict[str, Any], named: str) -> None:
    """And settings of jax that are not among those that travel."""
    with pytest.raises(NotPermitted, match=named):
        require_harmless(described(**options))


@pytest.mark.parametrize("options", [{"compiler_options": 7}, {"config": (1,)}])
def test_options_of_another_form_are_no_options(options: dict[str, Any]) -> None:
    """An error of the protocol, and none of ours."""
    with pytest.raises(ProtocolError, match="cannot be read"):
        require_harmless(described(**options))


def test_what_a_client_of_ours_says_is_taken() -> None:
    """Donation, settings that travel, a device."""
    config = tuple(sorted((name, CONFIG_DEFAULTS[name]) for name in EXPORTED_CONFIG))
    require_harmless(
        described(config=config, donate_argnums=(0,), static="jax", extra_key="x", device=1)
    )
