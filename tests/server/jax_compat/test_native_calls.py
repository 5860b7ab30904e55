"""Native code is called as jax itself calls it: with those shapes, attributes and layouts only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jaxd_server.jax_compat.native_calls import CONTRACTS, NativeCall, native_calls, written_by_jax

pytest.importorskip("flatbuffers")

Function = Callable[..., Any]

_linalg = lax.linalg


def _algorithm(name: str) -> Function:
    chosen = _linalg.SvdAlgorithm[name]
    return lambda x: _linalg.svd(x, algorithm=chosen)


# Of one matrix; what jax does not have for a shape or a platform is left out there.
FUNCTIONS: dict[str, Function] = {
    "cholesky": jnp.linalg.cholesky,
    "derivative of cholesky": jax.grad(lambda x: jnp.linalg.cholesky(x).real.sum()),
    "eig": jnp.linalg.eig,
    "eig, left": lambda x: _linalg.eig(x, compute_right_eigenvectors=False),
    "eigh": jnp.linalg.eigh,
    "eigh, upper": lambda x: jnp.linalg.eigh(x, UPLO="U"),
    "eigh by QR": lambda x: _linalg.eigh(x, implementation=_linalg.EighImplementation.QR),
    "eigh by Jacobi": lambda x: _linalg.eigh(x, implementation=_linalg.EighImplementation.JACOBI),
    "hessenberg": _linalg.hessenberg,
    "lu": _linalg.lu,
    "lu, each": jax.vmap(_linalg.lu),
    "lu, solved": lambda x: jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(x), x),
    "qr": jnp.linalg.qr,
    "qr, complete": lambda x: jnp.linalg.qr(x, mode="complete"),
    "schur": _linalg.schur,
    "schur, no vectors": lambda x: _linalg.schur(x, compute_schur_vectors=False),
    "solve": lambda x: jnp.linalg.solve(x, x),
    "svd": jnp.linalg.svd,
    "svd, no vectors": lambda x: jnp.linalg.svd(x, compute_uv=False),
    "svd, no vectors, reduced": lambda x: _linalg.svd(x, compute_uv=False, full_matrices=False),
    "svd, reduced": lambda x: jnp.linalg.svd(x, full_matrices=False),
    "svd by QR": _algorithm("QR"),
    "svd by Jacobi": _algorithm("JACOBI"),
    "svd by halves": _algorithm("DIVIDE_AND_CONQUER"),
    "tridiagonal": _linalg.tridiagonal,
    "tridiagonal, upper": lambda x: _linalg.tridiagonal(x, lower=False),
    "tridiagonal solve": lambda x: _linalg.tridiagonal_solve(x[..., 0], x[..., 0], x[..., 0], x),
    "triangular solve, transposed": lambda x: _linalg.triangular_solve(
        x, x, left_side=True, lower=True, transpose_a=True, conjugate_a=True, unit_diagonal=True
    ),
    "on the host": lambda x: jax.device_put(x, jax.memory.Space.Host),
}

SHAPES = ((2, 4, 4), (5, 3), (3, 5), (2, 2, 4, 4), (40, 33), (1, 1))
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def calls_of(function: Function, *specs: Any, platform: str = "cpu") -> set[NativeCall]:
    """What jax writes; nothing where it has no such operation."""
    from jax._src.interpreters import mlir

    try:
        made = export.export(jax.jit(function), platforms=[platform])(*specs)
    except Exception:  # noqa: BLE001  of any type: this jax has no such operation there
        return set()
    with mlir.make_ir_context():
        return {call for _, call in native_calls(made.mlir_module(serialized=False)) if call}


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_what_jax_writes_is_allowed(platform: str) -> None:
    """Of one shape; the soak has all of them."""
    _all_is_allowed(platform, np.float32, ((2, 4, 4),), (True,))


@pytest.mark.soak
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_whatever_jax_writes_is_allowed(platform: str, dtype: Any) -> None:
    """Of whatever shape, batched or not, in single precision also without 64 bits."""
    shapes = SHAPES if dtype == np.float32 and platform in {"cpu", "cuda"} else SHAPES[:2]
    wide = (True,) if dtype in {np.float64, np.complex128} else (True, False)
    _all_is_allowed(platform, dtype, shapes, wide)


def _all_is_allowed(
    platform: str, dtype: Any, shapes: tuple[tuple[int, ...], ...], wide: tuple[bool, ...]
) -> None:
    found: set[NativeCall] = set()
    for is_wide in wide:
        with jax.enable_x64(is_wide):
            for function in FUNCTIONS.values():
                for shape in shapes if is_wide else shapes[:1]:
                    spec = jax.ShapeDtypeStruct(shape, dtype)
                    found |= calls_of(function, spec, platform=platform)
    assert {call.target for call in found if not written_by_jax(call)} == set()
    assert len(found) > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "platform", ["cpu", *(pytest.param(each, marks=pytest.mark.soak) for each in PLATFORMS[1:])]
)
def test_every_call_of_the_table_that_jax_exports_was_written(platform: str) -> None:
    """On this jax: a name that is never written here would be a gap that nobody looks at."""
    written = {
        call.target
        for dtype in (np.float32, np.complex64)
        for function in FUNCTIONS.values()
        for call in calls_of(function, jax.ShapeDtypeStruct((4, 4), dtype), platform=platform)
    }
    names = {name for name, contract in CONTRACTS.items() if contract.platform == platform}
    never = {name for name in names - written if not re.match("lapack_[dz]", name)}  # as s and c
    # These exist for the other of the two only, or export does not promise to keep them.
    assert {re.sub(r"lapack_[sc]|^cu|^hip", "", name) for name in never} <= {
        *("heevd_ffi", "hetrd_ffi", "orgqr_ffi", "syevd_ffi", "sytrd_ffi", "ungqr_ffi"),
        *("solver_gesdd_ffi", "sparse_gtsv2_ffi"),
    }


@pytest.mark.parametrize("target", ["AllocateBuffer", "ApproxTopK", "LayoutConstraint", "Sharding"])
def test_what_has_no_contract_is_not_called(target: str) -> None:
    """Memory that others have left, functions that are brought along, other devices' data."""
    assert not written_by_jax(NativeCall(target, (), ("tensor<3xf32>",), ()))


# ── everything about a call that could be otherwise ──────────────────────────────────────────────

A = jax.ShapeDtypeStruct((2, 5, 3), np.float32)
SQUARE = jax.ShapeDtypeStruct((2, 4, 4), np.float32)
ROWS = jax.ShapeDtypeStruct((2, 4), np.float32)
PIVOTS = jax.ShapeDtypeStruct((2, 4), np.int32)

# Name, platform, what writes it, and what jax writes as well: values of settings, and sizes.
ONE_OF_EACH: dict[str, tuple[str, Function, tuple[Any, ...], tuple[str, ...]]] = {
    "potrf": ("cpu", lambda x: _linalg.cholesky(x, symmetrize_input=False), (SQUARE,), ()),
    "getrf": ("cpu", _linalg.lu, (A,), ()),
    "geqrf": ("cpu", lambda x: _linalg.qr(x, full_matrices=False), (A,), ()),
    "orgqr": (
        "cpu",
        _linalg.householder_product,
        (A, jax.ShapeDtypeStruct((2, 3), np.float32)),
        (),
    ),
    "syevd": ("cpu", _linalg.eigh, (SQUARE,), ("uplo",)),
    "geev": ("cpu", _linalg.eig, (SQUARE,), ("compute_left", "compute_right")),
    "gees": ("cpu", _linalg.schur, (SQUARE,), ("mode",)),
    "gesdd": ("cpu", _linalg.svd, (A,), ("mode",)),
    "gehrd": ("cpu", _linalg.hessenberg, (SQUARE,), ()),
    "sytrd": ("cpu", _linalg.tridiagonal, (SQUARE,), ("uplo",)),
    "trsm": (
        "cpu",
        _linalg.triangular_solve,
        (SQUARE, SQUARE),
        ("diag", "side", "trans_x", "uplo"),
    ),
    "gtsv": ("cpu", _linalg.tridiagonal_solve, (ROWS, ROWS, ROWS, SQUARE), ()),
    "solver_getrf": ("cuda", _linalg.lu, (A,), ()),
    "solver_gesvdj": (
        "cuda",
        _algorithm("JACOBI"),
        (jax.ShapeDtypeStruct((2, 40, 33), np.float32),),
        ("compute_uv",),
    ),
    "solver_gesvd": ("cuda", _algorithm("QR"), (A,), ("compute_uv",)),
    "solver_syevd": ("cuda", _linalg.eigh, (SQUARE,), ("lower", "algorithm")),
    "lu_pivots": (
        "cuda",
        lambda p: _linalg.lu_pivots_to_permutation(p, permutation_size=4),
        (PIVOTS,),
        (),
    ),
    "Qr": ("tpu", lambda x: _linalg.qr(x, full_matrices=False), (A,), ()),
    "Eigh": ("tpu", _linalg.eigh, (SQUARE,), ()),
    "LuDecomposition": ("tpu", _linalg.lu, (A,), ()),
    "annotate_device_placement": ("cuda", FUNCTIONS["on the host"], (A,), ()),
}


def changes_of_type(text: str) -> Iterator[str]:
    """Another size, rank or dtype."""
    dims, dtype = re.fullmatch(r"tensor<((?:\d+x)*)(.*)>", text).groups()  # type: ignore[union-attr]
    sizes = dims.split("x")[:-1]
    for at, size in enumerate(sizes):
        for other in (str(int(size) - 1), str(int(size) + 1), "1000000", "?"):
            yield f"tensor<{'x'.join([*sizes[:at], other, *sizes[at + 1 :]])}x{dtype}>"
    yield f"tensor<{dims}2x{dtype}>"
    yield f"tensor<2x{dims}{dtype}>"
    if sizes:
        yield f"tensor<{'x'.join([*sizes[1:], dtype])}>"
    for other in {"f32", "f64", "i32", "complex<f32>"} - {dtype}:
        yield f"tensor<{dims}{other}>"


def changes_of_attributes(call: NativeCall, also: tuple[str, ...]) -> Iterator[NativeCall]:
    """One that is missing, has another value, or is new."""
    given = dict(call.attributes)
    for name, value in given.items():
        yield with_attributes(call, {n: v for n, v in given.items() if n != name})
        for number in re.finditer(r"\b\d+\b", value):
            setting = re.search(r"(\w+) = $", value[: number.start()])
            if setting and setting[1] in also:
                continue  # a value of these that jax has is looked at by the corpus above
            other = str(int(number[0]) + 1)
            text = value[: number.start()] + other + value[number.end() :]
            yield with_attributes(call, given | {name: text})
        for one, other in (("true", "false"), ("false", "true")):
            at = re.search(rf"(\w+) = {one}", value)
            if at and at[1] not in also:
                yield with_attributes(call, given | {name: value.replace(one, other)})
    settings = given.get("mhlo.backend_config", "{}")
    more = settings.replace("}", ", lwork = 1 : i64}" if "=" in settings else "lwork = 1 : i64}")
    news = {
        "mhlo.backend_config": more,
        "backend_config": '"x"',
        "has_side_effect": "true" if "has_side_effect" not in given else "false",
        "api_version": "1 : i32" if call.attribute("api_version") != "1 : i32" else "3 : i32",
        "mhlo.sharding": '"{replicated}"',
        "called_computations": "[@main]",
    }
    for name, value in news.items():
        yield with_attributes(call, given | {name: value})


def with_attributes(call: NativeCall, attributes: dict[str, str]) -> NativeCall:
    """The same call with others."""
    return call._replace(attributes=tuple(sorted(attributes.items())))


def changes_of(call: NativeCall, also: tuple[str, ...]) -> Iterator[NativeCall]:
    """The call, each time with one thing changed."""
    for field in ("operands", "results"):
        types: tuple[str, ...] = getattr(call, field)
        others: list[tuple[str, ...]] = [(*types, types[0]), types[::-1]]
        for at, text in enumerate(types):
            others += [(*types[:at], other, *types[at + 1 :]) for other in changes_of_type(text)]
            others.append(types[:at] + types[at + 1 :])
        for other in others:
            yield (
                call._replace(operands=other)
                if field == "operands"
                else call._replace(results=other)
            )
    yield from changes_of_attributes(call, also)
    yield call._replace(target=call.target.replace("_s", "_d").replace("cu", "hip") + "x")


def is_written_as_well(name: str, call: NativeCall, changed: NativeCall) -> bool:
    """What jax has for other arguments: fewer reflectors, a longer permutation."""
    if name == "orgqr":
        (count,) = re.findall(r"tensor<2x(\d+)xf32>", changed.operands[1]) or ["9"]
        return changed._replace(operands=call.operands) == call and int(count) <= 3
    if name == "lu_pivots":
        return changed._replace(results=call.results) == call
    return changed == call


EVERY_TIME = {"potrf", "getrf", "trsm", "gtsv", "solver_syevd", "lu_pivots", "Qr"}
"""Calls of all forms; the others are looked at by `make soak`."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.soak] * (name not in EVERY_TIME))
        for name in ONE_OF_EACH
    ],
)
def test_a_call_with_anything_else_is_refused(name: str) -> None:
    """Each size, rank, dtype, number of buffers, attribute, layout and alias."""
    platform, function, specs, also = ONE_OF_EACH[name]
    (call, *_) = (c for c in calls_of(function, *specs, platform=platform) if name in c.target)
    assert written_by_jax(call)
    taken = [
        changed
        for changed in changes_of(call, also)
        if written_by_jax(changed) and not is_written_as_well(name, call, changed)
    ]
    assert taken == []


def test_what_stands_in_a_program_is_read_as_it_is() -> None:
    """However deep, and with attributes that jax would not have given it."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    (call,) = calls_of(_linalg.lu, A)
    listed = ", ".join(f"{name} = {value}" for name, value in call.attributes)
    types = f"({', '.join(call.operands)}) -> ({', '.join(call.results)})"
    text = f"""
      func.func @f(%arg0: {call.operands[0]}) {{
        %1:3 = "stablehlo.custom_call"(%arg0)
          {{call_target_name = "{call.target}", {listed}, has_side_effect = true}} : {types}
        return
      }}"""
    with mlir.make_ir_context():
        found = [each for _, each in native_calls(ir.Module.parse(text)) if each]
        assert found == [
            with_attributes(call, {**dict(call.attributes), "has_side_effect": "true"})
        ]
        (plain,) = (
            each
            for _, each in native_calls(
                ir.Module.parse(text.replace(", has_side_effect = true", ""))
            )
            if each
        )
    assert plain == call
