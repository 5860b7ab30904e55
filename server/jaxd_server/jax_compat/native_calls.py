"""Calls of native code in a program, compared with those that jax itself writes.

XLA finds such code by name and gives it the buffers that the program names. Most of it trusts their
sizes: LAPACK's `getrf` writes as many pivots as the matrix has rows, however small the buffer for
them is. So a name is not enough. For each name in the table here, jax is asked for the same
operation on operands of the same shapes; what the program has must be what jax writes then:
results, attributes, layouts, and which buffers are shared.

Verified on jax 0.10.2 and 0.11.2 by tests/server/jax_compat/test_native_calls.py, which has jax
write calls for each platform; no device is needed for that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax import export, lax

_MAX_CHARACTERS: Final = 20_000
"""In a call that is looked at; those of jax have two thousand."""

_DTYPES: Final = {
    "i1": np.bool_,
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "bf16": jax.numpy.bfloat16,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
}


class NativeCall(NamedTuple):
    """One call of native code, as MLIR prints its parts.

    Attributes:
        target: the name of the code.
        operands, results: their types.
        attributes: name and value of each, sorted, without the target.
    """

    target: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]

    def attribute(self, name: str) -> str:
        """The value of an attribute; nothing where there is none."""
        return dict(self.attributes).get(name, "")

    def setting(self, name: str) -> str:
        """One of the values that the code is given: `true`, `-1`, or a letter."""
        found = re.search(rf"\b{name} = (\w+)( : ui8)?", self.attribute("mhlo.backend_config"))
        if found is None:
            return ""
        return chr(int(found[1])) if found[2] else found[1]

    def __str__(self) -> str:
        return f"{self.target}({', '.join(self.operands)}) -> ({', '.join(self.results)})"


def native_calls(module: Any) -> Iterator[tuple[str, NativeCall | None]]:
    """The name of each operation in an MLIR module, however deep, and what it calls."""
    from jaxlib.mlir import ir

    found: list[tuple[str, NativeCall | None]] = []

    def note(operation: Any) -> Any:
        is_call = operation.name == "stablehlo.custom_call"
        found.append((operation.name, _read(operation) if is_call else None))
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    yield from found


def _read(operation: Any) -> NativeCall:
    attributes = {name: operation.attributes[name] for name in _names(operation)}
    target = attributes.pop("call_target_name").value
    return NativeCall(
        str(target),
        tuple(str(value.type) for value in operation.operands),
        tuple(str(value.type) for value in operation.results),
        tuple(sorted((name, str(value)) for name, value in attributes.items())),
    )


def _names(operation: Any) -> list[str]:
    """Names of its attributes; what iterating over them gives depends on jaxlib's version."""
    return [each if isinstance(each, str) else each.name for each in operation.attributes]


def written_by_jax(call: NativeCall) -> bool:
    """Whether jax writes just this call for operands of these types. Takes milliseconds, once."""
    if call.target not in CONTRACTS or len(repr(call)) > _MAX_CHARACTERS:
        return False
    return _is_written(call)


@lru_cache(maxsize=1024)
def _is_written(call: NativeCall) -> bool:
    contract = CONTRACTS[call.target]
    try:
        operands = [_operand(text) for text in call.operands]
        questions = list(contract.questions(call))
    except Exception:  # noqa: BLE001  of any type: no such operation, or no such array
        return False
    return any(call in _written(asked, tuple(operands), contract.platform) for asked in questions)


def _operand(text: str) -> jax.ShapeDtypeStruct:
    """What jax traces for a type.

    Raises:
        ValueError: when it is not that of an array of a known size.
        KeyError: when its dtype is not known.
    """
    found = re.fullmatch(r"tensor<((?:\d+x)*)([a-z].*)>", text)
    if found is None:
        raise ValueError(f"{text} is no array of a known size.")
    return jax.ShapeDtypeStruct(tuple(map(int, found[1].split("x")[:-1])), _DTYPES[found[2]])


class Question(NamedTuple):
    """An operation that jax is to write.

    Attributes:
        function: one of jax's, of the operands of a call.
        options: its keyword arguments, sorted.
    """

    function: Callable[..., Any]
    options: tuple[tuple[str, Any], ...]


@lru_cache(maxsize=1024)
def _written(
    asked: Question, operands: tuple[jax.ShapeDtypeStruct, ...], platform: str
) -> frozenset[NativeCall]:
    """The calls that jax writes for this; none when it refuses operands like these."""
    from jax.interpreters import mlir

    try:
        with jax.enable_x64(True):
            jitted = jax.jit(lambda *given: asked.function(*given, **dict(asked.options)))
            made = export.export(jitted, platforms=[platform])(*operands)
        with mlir.make_ir_context():
            calls = native_calls(made.mlir_module(serialized=False))
            return frozenset(call for _, call in calls if call)
    except Exception:  # noqa: BLE001  of any type: what jax does not write is refused
        return frozenset()


# ── which operation of jax's writes calls of which name ──────────────────────────────────────────

Questions = Callable[[NativeCall], Iterable[Question]]


class Contract(NamedTuple):
    """How the calls of one name are looked at.

    Attributes:
        platform: for which jax writes them.
        questions: for a call, the operations of jax that may have written it.
    """

    platform: str
    questions: Questions


def _of(function: Callable[..., Any], **options: Any) -> Question:
    return Question(function, tuple(sorted(options.items())))


def _just(function: Callable[..., Any], **options: Any) -> Questions:
    return lambda call: [_of(function, **options)]


def _eigh(call: NativeCall) -> Iterator[Question]:
    eigh = partial(_of, lax.linalg.eigh, symmetrize_input=False)
    if call.target == "Eigh":
        lower, sort = (part == "1" for part in call.attribute("backend_config")[1:4:2])
        yield eigh(lower=lower, sort_eigenvalues=sort)
        return
    lower = call.setting("uplo") == "L" or call.setting("lower") == "true"
    kinds = lax.linalg.EighImplementation
    chosen = {"\x01": kinds.QR, "\x02": kinds.JACOBI}.get(call.setting("algorithm"))
    yield eigh(lower=lower, implementation=chosen)


def _eig(call: NativeCall) -> Iterator[Question]:
    left, right = (call.setting(name) == "V" for name in ("compute_left", "compute_right"))
    yield _of(lax.linalg.eig, compute_left_eigenvectors=left, compute_right_eigenvectors=right)


def _svd(call: NativeCall, algorithm: str = "DEFAULT") -> Iterator[Question]:
    chosen = lax.linalg.SvdAlgorithm[algorithm]
    has_vectors = call.setting("mode") in {"A", "S"} or call.setting("compute_uv") == "true"
    for full in (True, False):
        yield _of(lax.linalg.svd, full_matrices=full, compute_uv=has_vectors, algorithm=chosen)


def _tridiagonal(call: NativeCall) -> Iterator[Question]:
    lower = call.setting("uplo") == "L" or call.setting("lower") == "true"
    yield _of(lax.linalg.tridiagonal, lower=lower)


def _schur(call: NativeCall) -> Iterator[Question]:
    yield _of(lax.linalg.schur, compute_schur_vectors=call.setting("mode") == "V")


def _triangular_solve(call: NativeCall) -> Iterator[Question]:
    yield _of(
        lax.linalg.triangular_solve,
        left_side=call.setting("side") == "L",
        lower=call.setting("uplo") == "L",
        transpose_a=call.setting("trans_x") in {"T", "C"},
        conjugate_a=call.setting("trans_x") == "C",
        unit_diagonal=call.setting("diag") == "U",
    )


def _permutation(call: NativeCall) -> Iterator[Question]:
    size = _operand(call.results[0]).shape[-1]
    yield _of(lax.linalg.lu_pivots_to_permutation, permutation_size=size)


def _placed(call: NativeCall) -> Iterator[Question]:
    spaces = jax.memory.Space
    wanted = "host" in call.attribute("mhlo.frontend_attributes")
    yield _of(jax.device_put, device=spaces.Host if wanted else spaces.Device)


_cholesky = _just(lax.linalg.cholesky, symmetrize_input=False)
_householder = _just(lax.linalg.householder_product)
_lu = _just(lax.linalg.lu)
_qr = _just(lax.linalg.qr, full_matrices=False)

_LAPACK: Final[dict[str, Questions]] = {
    "geev": _eig,
    "gees": _schur,
    "gehrd": _just(lax.linalg.hessenberg),
    "geqrf": _qr,
    "gesdd": _svd,
    "getrf": _lu,
    "gtsv": _just(lax.linalg.tridiagonal_solve),
    "heevd": _eigh,
    "hetrd": _tridiagonal,
    "orgqr": _householder,
    "potrf": _cholesky,
    "syevd": _eigh,
    "sytrd": _tridiagonal,
    "trsm": _triangular_solve,
    "ungqr": _householder,
}

_GPU: Final[dict[str, Questions]] = {
    "_lu_pivots_to_permutation": _permutation,
    "solver_geqrf_ffi": _qr,
    "solver_gesdd_ffi": partial(_svd, algorithm="DIVIDE_AND_CONQUER"),
    "solver_gesvd_ffi": partial(_svd, algorithm="QR"),
    "solver_gesvdj_ffi": partial(_svd, algorithm="JACOBI"),
    "solver_getrf_ffi": _lu,
    "solver_orgqr_ffi": _householder,
    "solver_potrf_ffi": _cholesky,
    "solver_syevd_ffi": _eigh,
    "solver_sytrd_ffi": _tridiagonal,
    "sparse_gtsv2_ffi": _just(lax.linalg.tridiagonal_solve),
}

_TPU: Final[dict[str, Questions]] = {
    "Eigh": _eigh,
    "LuDecomposition": _lu,
    "ProductOfElementaryHouseholderReflectors": _householder,
    "Qr": _qr,
}

CONTRACTS: Final[dict[str, Contract]] = {
    **{
        f"lapack_{letter}{name}_ffi": Contract("cpu", questions)
        for name, questions in _LAPACK.items()
        for letter in "sdcz"
    },
    **{f"cu{name}": Contract("cuda", questions) for name, questions in _GPU.items()},
    **{f"hip{name}": Contract("rocm", questions) for name, questions in _GPU.items()},
    **{name: Contract("tpu", questions) for name, questions in _TPU.items()},
    "annotate_device_placement": Contract("cuda", _placed),  # the same for every accelerator
}
"""By name, the operations that write it. Native code that is not here is not called.

Not here, though jax exports it: `AllocateBuffer` (uninitialised memory), `ApproxTopK` (it
brings a function along), kernels and callbacks (code), `Sharding` and its like (one device is used)
and what is for shapes that are not known.
"""
