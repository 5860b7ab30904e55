"""Exports functions for servers that accept no code: traced here, sent as programs.

A server that was started with `--accept exported` unpickles nothing. It receives the bytes of
`jax.export`, one program for each kind of arguments, and flat lists of arrays.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from jaxd.interop.jax_runtime import import_jax
from jaxd.interop.remote_array import RemoteArray
from jaxd.results.reader import ResultReader
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import PerProcess
from jaxd_protocol.errors import NotPermitted
from jaxd_protocol.fingerprint import Part
from jaxd_protocol.jit.options import EXPORTED_CONFIG, Options, fingerprint_of, function_key
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs, map_arguments
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.pytree import Layout, parse_leaves
from jaxd_protocol.pytree.leaves import is_exact

if TYPE_CHECKING:
    from jaxd.dispatch.caller import Caller
    from jaxd.request.function_snapshot import FunctionSpec


_MAX_PER_SPEC: Final = 256

_exported: Final[weakref.WeakKeyDictionary[FunctionSpec, dict[Any, ExportedFunction]]] = (
    weakref.WeakKeyDictionary()
)
_export_lock: Final = PerProcess(threading.Lock)
"""Guards the table; two exports at once give equal programs."""


def without_source_locations() -> AbstractContextManager[Any]:
    """Within it, jax lowers without source locations; no effect where jax lacks the setting.

    With them, a program would change whenever a comment is written above its code. Uses a private
    name of jax.
    """
    try:
        from jax._src.config import traceback_in_locations_limit
    except ImportError:
        return nullcontext()
    return cast("AbstractContextManager[Any]", traceback_in_locations_limit(0))


class ExportedFunction:
    """A program exported from a function; used in place of a `FunctionSpec`.

    Attributes:
        key, snapshot, options, donates, statics: as those of a `FunctionSpec`.
        name, manifest, fingerprint, code, reader, admitted, forms, pinned, refused, served,
            archives, calls_back, takes_arguments, is_repeatable: as of a `FunctionSnapshot`;
            nothing of this process is called back.
    """

    def __init__(self, name: str, code: bytes, structure: Any, options: Options) -> None:
        self.snapshot = self
        self.name = name
        self.code = code
        self.fingerprint = fingerprint_of(code)
        part = Part("program", name, self.fingerprint[:8])
        self.manifest = FunctionManifest(
            self.fingerprint, b"", (part,), {}, {}, frozenset(), (), True
        )
        self.options = options.to_bytes()
        self.donates = options.donates
        self.key = function_key(self.fingerprint, options)
        self.statics = NO_STATIC_ARGS
        self.reader = _TreeReader(structure)
        self.admitted: dict[bytes, None] = {}
        self.forms: dict[bytes, bytes] = {}
        self.pinned: dict[bytes, Any] = {}
        self.refused: dict[bytes, str] = {}
        self.served: dict[bytes, None] = {}
        self.archives = None
        self.calls_back = self.takes_arguments = False
        self.is_repeatable = True

    def admit(self, skeleton: bytes) -> None:
        """It was traced here: what was changed in jax is in the program."""
        self.admitted[skeleton] = None

    def pickling_context(self) -> AbstractContextManager[None]:
        """Nothing has to be prepared."""
        return nullcontext()


class _TreeReader(ResultReader):
    """Puts the leaves that a program returns into the tree that the function returned.

    The tree is known here: the server sends a flat list of arrays and numbers.
    """

    def __init__(self, structure: Any) -> None:
        super().__init__({})
        self._tree_structure = structure

    def _parsed(self, skeleton: bytes) -> tuple[Layout, str | None]:
        structure = self._tree_structure
        flat = parse_leaves(skeleton, structure.num_leaves)
        layout = Layout(flat.leaves, lambda leaves: structure.unflatten(flat.build(list(leaves))))
        return layout, None


def exported_call(
    caller: Caller,
    spec: FunctionSpec,
    function: Callable[..., Any],
    config: tuple[tuple[str, Any], ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[FunctionSpec, tuple[Any, ...]]:
    """The exported program to call instead of a function, and its arguments.

    Args:
        caller: of the server.
        spec: the function as it is now.
        function: the function.
        config: names and values of jax settings for it.
        args: of the call.
        kwargs: of the call.

    Raises:
        NotPermitted: when it cannot be exported, or there is no jax here to do it.
        Exception: what the function raises while it is traced.
    """
    jax = _import_jax()
    options = Options.from_bytes(spec.options)
    if options.in_shardings or options.out_shardings:
        raise _export_error(spec, "in_shardings and out_shardings do not travel with a program")
    leaves, tree = jax.tree.flatten(_with_closed_statics(args, kwargs, spec.statics))
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise _export_error(
            spec, "jax traces the caller. Use f.grad(), f.vmap() and the like, which are exported"
        )
    kind = (tree, tuple(map(_leaf_kind, leaves)), caller.session.platform)
    with _export_lock():
        known = _exported.setdefault(spec, BoundedDict(_MAX_PER_SPEC))
        found = known.get(kind)
    if found is None:
        found = _export(caller, spec, function, options, config, leaves, tree)
        with _export_lock():
            known[kind] = found
    return cast("FunctionSpec", found), tuple(leaves)


def _export(
    caller: Caller,
    spec: FunctionSpec,
    function: Callable[..., Any],
    options: Options,
    config: tuple[tuple[str, Any], ...],
    leaves: list[Any],
    tree: Any,
) -> ExportedFunction:
    from jax import export

    from jaxd.tracing.inline import local_jax_settings, lowering_name
    from jaxd_protocol.jit.static_leaves import unwrapping_arguments

    jax = _import_jax()
    structures: list[Any] = []
    opened = unwrapping_arguments(function, NO_STATIC_ARGS)

    def flat(*given: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(tree, given)
        found, structure = jax.tree.flatten(opened(*args, **kwargs))
        structures.append(structure)
        return cast("list[Any]", found)

    # a `ShapeDtypeStruct` of 64 bits stands for an array of numpy, which jax narrows
    specs = [
        (jax.core.ShapedArray if exact else jax.ShapeDtypeStruct)(shape, dtype, weak_type=weak)
        for shape, dtype, weak, exact in map(_leaf_kind, leaves)
    ]
    platform = lowering_name(caller.session.platform)
    with local_jax_settings(config), without_source_locations():
        jitted = jax.jit(flat, keep_unused=True)
        traced = jitted.trace(*specs)  # what the function raises is raised as it is
        del traced
        try:
            code = bytes(export.export(jitted, platforms=[platform])(*specs).serialize())
        except ImportError as error:  # jax needs one more package for this
            raise NotPermitted(
                "this server takes exported programs only (--accept exported), and to make one jax "
                f"needs a package that is missing here ({error}). Run: pip install 'jaxd[exported]'"
            ) from error
        except (NotImplementedError, ValueError) as error:
            raise _export_error(spec, str(error).rstrip(".")) from error
    of_program = Options(
        donate_argnums=_donated_leaves(options, tree) or None,
        compiler_options=options.compiler_options,
        config=tuple(pair for pair in options.config if pair[0] in EXPORTED_CONFIG),
        static="jax",
        extra_key=options.extra_key,
    )
    return ExportedFunction(spec.snapshot.name, code, structures[-1], of_program)


def _donated_leaves(options: Options, tree: Any) -> tuple[int, ...]:
    """Numbers of the leaves of the arguments that are donated."""
    import jax

    args, kwargs = jax.tree.unflatten(tree, range(tree.num_leaves))
    wanted = {number % len(args) for number in options.donate_argnums or () if args}
    given = [args[number] for number in wanted]
    given += [kwargs[name] for name in kwargs.keys() & set(options.donate_argnames or ())]
    return tuple(sorted(jax.tree.leaves(given)))


def _with_closed_statics(args: tuple[Any, ...], kwargs: dict[str, Any], statics: StaticArgs) -> Any:
    """The arguments with all static and untraceable parts wrapped in a `StaticLeaf`."""
    from jaxd_protocol.jit.static_leaves import StaticLeaf, wrap_untraceable

    closed = partial(wrap_untraceable, strict=statics.strict)
    return map_arguments((args, kwargs), statics, closed, StaticLeaf)


def _leaf_kind(leaf: Any) -> tuple[tuple[int, ...], Any, bool, bool]:
    """Shape, dtype and weak type of an array or number, as jax takes it; whether 64 bits stay."""
    import jax

    is_array = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    of = leaf if is_array else jax.typeof(leaf)
    weak = bool(getattr(of, "weak_type", False))
    exact = isinstance(leaf, jax.Array | RemoteArray) and is_exact(str(of.dtype), weak)
    return tuple(of.shape), of.dtype, weak, exact


def _import_jax() -> Any:
    return import_jax(
        NotPermitted,
        "this server takes exported programs only (--accept exported), and this process has no jax "
        "to make one. Run: pip install jax, or use a server that takes code.",
    )


def _export_error(spec: FunctionSpec, why: str) -> NotPermitted:
    return NotPermitted(
        f"{spec.snapshot.name} cannot be exported, and this server takes nothing else (--accept "
        f"exported): {why}. Leave that out, or use a server that takes code."
    )
