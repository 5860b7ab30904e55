"""What is read of jax's exported programs; notices when the names move that this takes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import NotPermitted, ProtocolError
from jaxd_server.jax_compat import exported as module
from jaxd_server.jax_compat.exported import open_program, require_export
from jaxd_server.jax_compat.native_calls import NativeCall

pytest.importorskip("flatbuffers")

from jax import export

from tests.exported_programs import rewritten
from tests.ids import row

F3 = jax.ShapeDtypeStruct((3,), np.float32)


def exported(function: Any, *specs: Any, vjp_order: int = 0, **options: Any) -> bytes:
    """What a client sends, but for what it takes care of."""
    made = export.export(jax.jit(function), **options)(*(specs or (F3,)))
    return bytes(made.serialize(vjp_order=vjp_order))


def test_a_program_is_opened_and_runs() -> None:
    """Leaves in, leaves out; linear algebra of jax is native code, and called as jax calls it."""
    require_export()
    program = open_program(exported(lambda x, y: [x + y, jnp.sin(x)], F3, F3))
    found = jax.jit(program)(np.ones(3, np.float32), np.full(3, 2, np.float32))
    assert np.asarray(found[0]).tolist() == [3.0] * 3
    np.testing.assert_allclose(found[1], np.sin(np.ones(3)), rtol=1e-6)
    square = jax.ShapeDtypeStruct((3, 3), np.float32)
    program = open_program(exported(lambda x: [jnp.linalg.cholesky(x)], square))
    np.testing.assert_allclose(jax.jit(program)(np.eye(3, dtype=np.float32))[0], np.eye(3))


def foreign(x: Any) -> Any:
    """Calls native code that somebody has registered."""
    call = jax.ffi.ffi_call("somebodys_code", F3)
    return [jax.lax.cond(x[0] > 0, lambda: call(x), lambda: x)]


def test_native_code_of_others_is_refused_by_name() -> None:
    """However deep it stands; unless it is on the list of this server."""
    unchecked = [export.DisabledSafetyCheck.custom_call("somebodys_code")]
    data = exported(foreign, disabled_checks=unchecked)
    with pytest.raises(NotPermitted, match=r"somebodys_code.*--allow-target somebodys_code"):
        open_program(data)
    with pytest.raises(NotPermitted, match="nobody checks these"):
        open_program(data, frozenset({"others"}))
    assert callable(open_program(data, frozenset({"somebodys_code"})))


def test_native_code_of_jax_is_refused_with_buffers_of_other_sizes() -> None:
    """It would write past them: LAPACK asks nobody how long they are."""
    matrix = jax.ShapeDtypeStruct((64, 64), np.float32)
    made = export.export(jax.jit(lambda x: list(jax.lax.linalg.lu(x))[:1]))(matrix)
    data = rewritten(made, "tensor<64xi32>", "tensor<2xi32>")
    with pytest.raises(NotPermitted, match=r"calls lapack_sgetrf_ffi\(tensor<64x64xf32>\)"):
        open_program(data)
    assert callable(open_program(data, frozenset({"lapack_sgetrf_ffi"})))
    assert callable(open_program(bytes(made.serialize())))


def test_a_program_cannot_have_a_server_look_for_hours() -> None:
    """Each way of calling native code takes some milliseconds to look at."""
    calls = [NativeCall("lapack_sgetrf_ffi", (f"tensor<{n}xf32>",), (), ()) for n in range(1001)]
    with pytest.raises(NotPermitted, match="1001 different ways"):
        module._refuse([("stablehlo.custom_call", call) for call in calls], frozenset())


def test_what_is_not_known_to_be_harmless_is_refused() -> None:
    """What waits for the host, holds pointers or kernels, or is of another dialect."""
    rows: list[tuple[str, str]] = [
        ("stablehlo.infeed", ""),
        ("stablehlo.send", ""),
        ("stablehlo.recv", ""),
        ("stablehlo.outfeed", ""),
        ("gpu.launch", ""),
        ("llvm.call", ""),
        ("stablehlo.custom_call", "xla_python_cpu_callback"),
        ("stablehlo.custom_call", "xla_ffi_python_gpu_callback"),
        ("stablehlo.custom_call", "tf.call_tf_function"),
        ("stablehlo.custom_call", "__gpu$xla.gpu.triton"),
        ("stablehlo.custom_call", "mosaic_gpu_v2"),
        ("stablehlo.custom_call", "tpu_custom_call"),
        ("stablehlo.custom_call", "CustomSPMDPartitioning"),
    ]
    for name, target in rows:
        with row((name, target)):
            call = NativeCall(target, (), (), ()) if target else None
            with pytest.raises(NotPermitted, match="does not run"):
                module._refuse([("func.func", None), (name, call)], frozenset())


def test_operations_are_found_however_deep() -> None:
    """In functions that are called, and in regions."""

    def deep(x: Any) -> Any:
        return [jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0]]

    names = {name for name, _ in module._operations(export.export(jax.jit(deep))(F3))}
    assert {"func.func", "stablehlo.while", "stablehlo.sine"} <= names


@pytest.mark.parametrize("cut", [0, 1, 100, 10**6])
def test_what_cannot_be_read_is_refused_in_our_own_words(cut: int) -> None:
    """Cut off, or with something else in it."""
    data = exported(lambda x: [x + 1])
    for broken in (data[:cut] if cut < len(data) else b"garbage" * 99, bytes(cut % 4096)):
        with pytest.raises(ProtocolError, match="cannot be read"):
            open_program(broken)


def test_programs_of_another_form_are_refused() -> None:
    """Trees, and programs that bring their derivative, which nobody has looked at."""
    for data in (
        exported(lambda x: {"a": x}),
        exported(lambda x: x),
        exported(lambda x: [x["a"]], {"a": F3}),
        exported(lambda x: [x * x], vjp_order=1),
    ):
        with pytest.raises(ProtocolError, match="flat lists"):
            open_program(data)
    (size,) = export.symbolic_shape("n")
    data = exported(lambda x: [x + 1], jax.ShapeDtypeStruct((size,), np.float32))
    with pytest.raises(ProtocolError, match="known sizes"):
        open_program(data)
