"""The client's only access to jax: used when the user's process has imported it, never before."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.errors import ConfigurationError, JaxdError, PackingError, TracerError
from jaxd_protocol.jit.options import CONFIG_DEFAULTS, Config, normal_config
from jaxd_protocol.packages.installed import (
    is_local_module,
)
from jaxd_protocol.pytree import Leaf, TreeEncoder
from jaxd_protocol.pytree.leaves import dtype_of

if TYPE_CHECKING:
    from jaxd.interop.jax_settings import SettingsReader

_TRUE: Final = frozenset({"y", "yes", "t", "true", "on", "1"})  # as jax reads its variables


def loaded_jax() -> Any:
    """The jax module when this process has imported it completely, else None."""
    jax = sys.modules.get("jax")
    return jax if jax is not None and hasattr(jax, "Array") and hasattr(jax, "random") else None


def import_jax(error: type[JaxdError], text: str) -> Any:
    """jax, imported if it is not yet.

    Raises:
        JaxdError: of the given type and text, when it is not installed.
    """
    try:
        return importlib.import_module("jax")
    except ImportError as cause:
        raise error(text) from cause


def require_jax() -> None:
    """Imports jax for a caller who asked for jax arrays.

    Raises:
        ConfigurationError: when it is not installed.
    """
    if loaded_jax() is None:
        import_jax(
            ConfigurationError,
            "results='jax' needs jax in this process. Run: pip install 'jaxd[server]', or ask for "
            "results='numpy'.",
        )


def started_platform() -> str | None:
    """The platform that jax computes on in this process; None while it has no backend.

    Uses jax's private `xla_bridge`, because every public function starts a backend.
    """
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not bridge.backends_are_initialized():
        return None
    platform: str = sys.modules["jax"].default_backend()
    return platform


def named_in(module: ModuleType, name: str) -> Any:
    """What a module has by a name; None where it has nothing.

    jax warns of a deprecated name when somebody asks for it. That is for the program to do, so it
    is looked up in the private table that jax has of such names in the module.
    """
    return vars(module).get(name, _deprecated(module).get(name, (None, None))[1])


def replace_in(module: ModuleType, name: str, value: Any) -> None:
    """Gives a module something else by a name that it has; where jax warns of it, it still does."""
    names = _deprecated(module)
    if name in vars(module) or name not in names:
        setattr(module, name, value)
        return
    names[name] = names[name][0], value
    forget = getattr(vars(module).get("__getattr__"), "cache_clear", None)  # what it has given out
    if forget is not None:
        forget()


def _deprecated(module: ModuleType) -> dict[str, tuple[str, Any]]:
    """The deprecated names of a module of jax, each with what jax says and what it gives."""
    found: dict[str, tuple[str, Any]] = vars(module).get("_deprecations", {})
    return found


def prefer_cpu() -> None:
    """Makes jax, which is imported and has no backend, use the CPU unless platforms are set."""
    config = sys.modules["jax"].config
    if not config.jax_platforms:
        config.update("jax_platforms", "cpu")


def current_config() -> Config:
    """The settings that are sent with a function, as they are in this thread now.

    Without jax, those that it would take from the environment: JAX_ENABLE_X64 and the like.

    Raises:
        PackingError: when jax has a setting or a context here that cannot travel.
    """
    return _config_of_environment() if loaded_jax() is None else _settings_reader()()


@cache
def _settings_reader() -> SettingsReader:
    from jaxd.interop.jax_settings import SettingsReader

    return SettingsReader()


def runs_here() -> bool:
    """Whether jax's settings in this thread are that functions run in this process.

    As under `jax.disable_jit()`, where a function runs step by step, for whoever looks at it; and
    where jax notes in the keys of random numbers, which are arrays of this process, what was used.
    """
    jax = loaded_jax()
    if jax is None:
        return False
    config = jax.config
    no_execution = getattr(config, "jax_no_execution", False)  # from jax 0.7 on
    return config.jax_disable_jit or config.jax_debug_key_reuse or no_execution


def is_mutable_in_jax(cls: type) -> bool:
    """Whether jax takes instances of a class, which no array is, by its own table of types.

    Those are its mutable arrays, and what libraries make of them. What else is in the table never
    changes: text, specs, scalar types such as `jnp.float32`.
    """
    core = sys.modules.get("jax._src.core")
    if core is None or cls not in getattr(core, "pytype_aval_mappings", ()):
        return False
    is_value = cls.__module__.partition(".")[0] in ("builtins", "ml_dtypes", "numpy")
    return not is_value and cls.__name__ not in ("ShapeDtypeStruct", "_ScalarMeta")


def logs_compiles() -> bool:
    """Whether jax logs compilations in this thread now."""
    jax = loaded_jax()
    return jax is not None and bool(jax.config.jax_log_compiles)


def check_shardings(option: str, value: Any) -> None:
    """Returns when a tree holds nothing but shardings, specs of partitions, formats and None.

    Raises:
        TypeError: as jax, when there is something else in it.
    """
    jax = loaded_jax()
    leaves = [value] if jax is None else jax.tree.leaves(value, is_leaf=lambda leaf: leaf is None)
    for leaf in leaves:
        if jax is None or not (leaf is None or isinstance(leaf, _kinds_of_sharding(jax))):
            raise TypeError(
                f"{option} leaf specifications are expected to be PartitionSpec instances or "
                f"None, but got {leaf}. Give shardings, which jax.sharding has."
            )


def _kinds_of_sharding(jax: Any) -> tuple[type, ...]:
    layout = importlib.import_module("jax.experimental.layout")
    return jax.sharding.Sharding, jax.sharding.PartitionSpec, layout.Format


@cache
def _config_of_environment() -> Config:
    texts = {name: os.environ.get(name.upper(), "") for name in CONFIG_DEFAULTS}
    return normal_config({name: _read_as_jax(name, text) for name, text in texts.items() if text})


def _read_as_jax(name: str, text: str) -> Any:
    """The value of a setting that a variable of the environment gives.

    Raises:
        ConfigurationError: when it is to be a number and is none.
    """
    default = CONFIG_DEFAULTS[name]
    if isinstance(default, bool):
        return text.lower() in _TRUE
    if not isinstance(default, int | float):
        return text
    try:
        return type(default)(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{name.upper()}={text!r} in the environment is no number. Set it to one, or unset it."
        ) from error


def encode_jax(encoder: TreeEncoder, value: Any, *, is_gathered: bool = False) -> bool:
    """Appends a jax array, or an array of PRNG keys; False when the value is neither.

    Args:
        encoder: appends it.
        value: may be anything.
        is_gathered: whether one that is spread over several devices is sent as a whole.

    Raises:
        TracerError: when it is a tracer: jax traces the caller.
        PackingError: when it is spread over several devices, and not to be gathered.
    """
    jax = loaded_jax()
    if jax is None or not isinstance(value, jax.Array):
        return False
    if isinstance(value, jax.core.Tracer):
        raise TracerError(
            "a tracer has no data that could be sent: it stands for a value inside of jax.jit, "
            "grad, vmap or the like. Only a plain call, f(x), becomes part of what jax traces "
            "there; submit, call_async, map, remote, warm, why and put need arrays. Make a plain "
            "call here, or use them outside of what is traced."
        )
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        from jaxd_protocol.jax_objects.arrays import key_data, key_impl

        _check_place(value, is_gathered=is_gathered)
        encoder.key(key_impl(value), key_data(value))
    else:
        encode_jax_array(encoder, value, is_gathered=is_gathered)
    return True


def encode_jax_array(encoder: TreeEncoder, value: Any, *, is_gathered: bool = False) -> None:
    """As `encode_jax`, of an array that is known to be no tracer and no keys."""
    _check_place(value, is_gathered=is_gathered)
    numpy: Any = sys.modules["numpy"]
    encoder.ndarray(numpy.asarray(value), bool(value.weak_type), True)


def _check_place(value: Any, *, is_gathered: bool) -> None:
    """Raises `PackingError` where an array is spread over several devices, and not gathered."""
    if not (is_gathered or type(value.sharding) is loaded_jax().sharding.SingleDeviceSharding):
        from jaxd_protocol.jax_objects.decomposition import check_one_device

        check_one_device(value.sharding, "an argument", "pass jaxd.put(x)")


def _traces() -> Iterator[Any]:
    """What jax traces the caller with, the innermost first; by private names: no others exist."""
    trace = sys.modules["jax._src.core"].trace_ctx.trace
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


def is_in_trace() -> bool:
    """Whether jax traces the caller, in any way."""
    return any(type(each).__name__ != "EvalTrace" for each in _traces())


def is_checked() -> bool:
    """Whether checkify traces the caller: then it has to see each call, also of known values."""
    if "jax.experimental.checkify" not in sys.modules:
        return False
    frames = (getattr(trace, "frame", None) for trace in _traces())
    about = (getattr(frame, "debug_info", None) for frame in frames)
    return any(getattr(each, "traced_for", None) == "checkify" for each in about)


def is_staged() -> bool:
    """Whether jax traces the caller into a program, as it does with the body of `jax.lax.scan`.

    A transformation, such as `jax.grad`, may be inside of that.
    """
    return any(type(trace).__name__ == "DynamicJaxprTrace" for trace in _traces())


def outside_trace(make: Callable[..., Any], *args: Any) -> Any:
    """The result of a jax function: an array also where jax traces the caller.

    Inside of `jax.jit` it would be a tracer, which must not be kept.
    """
    made = make(*args)
    jax = loaded_jax()
    if isinstance(made, jax.core.Tracer):
        with jax.ensure_compile_time_eval():
            made = make(*args)
    return made


def to_jax(array: Any, weak: bool) -> Any:
    """A numpy array as a jax array of the same dtype on the default device, also of 64 bits."""
    from jaxd_protocol.jax_objects.arrays import exact_array, weak_array

    return weak_array(array) if weak else exact_array(array)


def to_jax_arrays(data: Iterable[tuple[Any, bool]]) -> list[Any]:
    """As `to_jax`, of many: each with whether it is weakly typed."""
    from jaxd_protocol.jax_objects.arrays import exact_arrays

    return exact_arrays(data)


def to_jax_keys(data: Any, impl: str) -> Any:
    """Typed PRNG keys over their numbers.

    Raises:
        ValueError: when jax has no such keys.
    """
    from jaxd_protocol.jax_objects.arrays import key_array

    try:
        return key_array(impl, data)
    except KeyError:
        raise ValueError(f"this process has no PRNG implementation {impl!r}") from None


ArrayLibrary = Literal["jax", "numpy", "lazy"]


class PRNGKeys:
    """Typed PRNG keys in a process without jax: opaque, but a persistent function takes them.

    Attributes:
        impl: name of the PRNG implementation.
        data: the keys' numbers, uint32.
    """

    def __init__(self, impl: str, data: Any) -> None:
        self.impl = impl
        self.data = data

    def __repr__(self) -> str:
        return f"PRNGKeys(impl={self.impl!r}, data={self.data!r})"


def array_library() -> ArrayLibrary:
    """The array library of this process."""
    if loaded_jax() is not None:
        return "jax"
    return "numpy" if "numpy" in sys.modules else "lazy"


def native_array(leaf: Leaf, data: memoryview, kind: ArrayLibrary) -> Any:
    """An array, or PRNG keys, over bytes in C order that do not change any more.

    Args:
        leaf: its shape and dtype.
        data: its bytes; a numpy array is writable when they are.
        kind: the library of the array.

    Raises:
        ArgumentError: when it has a dtype that needs a package which is not installed.
    """
    if kind == "lazy":
        from jaxd.interop.lazy_array import LazyArray

        array: Any = LazyArray(leaf.dtype, leaf.shape, data)
    else:
        import numpy

        array = numpy.ndarray(leaf.shape, dtype_of(leaf.dtype), data)
        if kind == "jax":
            return to_jax_keys(array, leaf.impl) if leaf.tag == "K" else to_jax(array, leaf.weak)
    return PRNGKeys(leaf.impl, array) if leaf.tag == "K" else array


def map_leaves(do: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with what `do` returns in the place of each leaf."""
    jax = loaded_jax()
    return _mapped(do, tree) if jax is None else jax.tree.map(do, tree)


def leaves_of(tree: Any) -> list[Any]:
    """The leaves, in order."""
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found


def _mapped(do: Callable[[Any], Any], tree: Any) -> Any:
    if tree is None:
        return None
    if isinstance(tree, dict):
        made = {key: _mapped(do, value) for key, value in tree.items()}
        if isinstance(tree, defaultdict):
            return defaultdict(tree.default_factory, made)
        return OrderedDict(made) if isinstance(tree, OrderedDict) else made
    if isinstance(tree, list):
        return [_mapped(do, value) for value in tree]
    if isinstance(tree, tuple):
        children = [_mapped(do, value) for value in tree]
        return type(tree)._make(children) if hasattr(tree, "_make") else tuple(children)
    return do(tree)


class JaxChanges:
    """Looks for code of the user's in jax itself. Thread-safe; loads nothing where jax is not.

    Who registers a lowering rule for `sin_p`, or puts a method into jax's tracers, changes what
    every function means that uses it. No function reaches that, so no walk finds it; a server does
    not have it, and gets it for nobody, since it would hold for all clients.

    Attributes:
        were_found: whether there was some at any time.
    """

    def __init__(self) -> None:
        self.were_found = False
        self._state: Any = None
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()  # guards _state

    def check(self, is_seen: Callable[[Any, Any], bool]) -> None:
        """Returns when there is none of which a function does not know.

        Args:
            is_seen: whether the function has looked up a key in a mapping, such as the names of a
                module: then what stands there is a part of it.

        Raises:
            PackingError: when there is some; the message names it.
        """
        if "jax" not in sys.modules:
            return
        with self._lock:
            if self._state is None:
                from jaxd_protocol.jax_objects.installed_state import InstalledState

                self._state = InstalledState(_is_local)
            found = [each for each in self._state.changes() if not is_seen(each.holder, each.key)]
        if not found:
            return
        self.were_found = True
        change, others = found[0], f", and {len(found) - 1} more" if len(found) > 1 else ""
        what = f"is {change.code}" if change.code else "was replaced or removed"
        raise PackingError(
            f"{change.where} {what} in this process{others}: it changes what jax makes of every "
            "function, and a server has jax as it was installed. Define a primitive or a function "
            "of your own, whose rules travel; or run the function here with JAXD_INLINE=1."
        )


def _is_local(content: dict[str, Any]) -> bool:
    name = content.get("__name__")
    return is_local_module(name if isinstance(name, str) else None)


jax_changes: Final = JaxChanges()
"""Those of this process."""
