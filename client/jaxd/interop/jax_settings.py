"""jax's settings and contexts as they are in the thread that calls.

Uses the private names behind `jax.config`, because only these tell all that decides about a trace:
`trace_context` gives it as one tuple, which is compared with those of the calls before. Verified on
jax 0.10.2 and 0.11.2 by tests/client/interop/test_jax_settings.py.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final

from jaxd_protocol.base.process import reset_after_fork, start_thread
from jaxd_protocol.errors import PackingError
from jaxd_protocol.jit.options import CONFIG_DEFAULTS, Config
from jaxd_protocol.jit.settings import (
    ABSTRACT_MESH,
    CLIENTS,
    COMPUTE_ON,
    CONTEXTS,
    LOCAL,
    MESHES,
    REFUSED,
    SERVERS,
    SET_MESH,
    XLA_METADATA,
    plain,
)
from jaxd_protocol.pytree import is_literal

_value: Final = attrgetter("value")
_MOST_REMEMBERED: Final = 8
_STAY: Final = CLIENTS | SERVERS | LOCAL
_NO_MESH: Final = "device_context"


class SettingsReader:
    """Reads what the thread that calls has set. Thread-safe; made where jax is loaded.

    As long as a thread's settings are among the last few that were seen, one tuple is made and
    compared, which takes two microseconds.
    """

    def __init__(self) -> None:
        from jax._src import config, mesh

        holders = sys.modules["jax"].config._value_holders
        self._trace_context, self._names = _named_context(config, holders)
        seen = set(self._names())
        outside = [
            name for name in (*CONFIG_DEFAULTS, *REFUSED) if name in holders and name not in seen
        ]
        self._outside = (*outside, _NO_MESH)
        self._holders = (*(holders[name] for name in outside), _device_context(config, mesh))
        self._unset = _of_a_fresh_thread(self._contexts)
        self._recent: tuple[tuple[Any, Config], ...] = ()

    def __call__(self) -> Config:
        """Names and values of what is not at its default and travels, sorted by name.

        Raises:
            PackingError: when something is set that cannot travel.
        """
        token = self._trace_context(), *map(_value, self._holders)
        for known, config in self._recent:
            if known == token:
                return config
        config = tuple(sorted(self._travelling()))
        self._recent = ((token, config), *self._recent[: _MOST_REMEMBERED - 1])
        return config

    def names(self) -> frozenset[str]:
        """Those of all settings and contexts that decide about a key."""
        return frozenset((*self._names(), *self._outside)) - _STAY

    def _all(self) -> Iterator[tuple[str, Any]]:
        yield from zip(self._names(), self._trace_context(), strict=True)
        yield from zip(self._outside, map(_value, self._holders), strict=True)

    def _contexts(self) -> dict[str, Any]:
        """What is no setting."""
        return {name: value for name, value in self._all() if name not in _settings()}

    def _travelling(self) -> Iterator[tuple[str, Any]]:
        for name, value in self._all():
            if name in CONTEXTS or name in _STAY:
                continue
            if name in CONFIG_DEFAULTS:
                if plain(value) != CONFIG_DEFAULTS[name]:
                    yield name, plain(value)
            elif name in REFUSED:
                _check_refused(name, value)
            elif name in _settings():
                yield name, _literal(name, plain(value))  # of a jax that we do not know
            elif not self._is_unset(name, value):
                raise _cannot_travel(name, value)
        yield from _described(self._contexts())

    def _is_unset(self, name: str, value: Any) -> bool:
        if name not in self._unset:  # it is of a module of jax that was imported since
            self._unset = _of_a_fresh_thread(self._contexts)
        return bool(value == self._unset[name])


def _named_context(
    config: Any, holders: Mapping[str, Any]
) -> tuple[Callable[[], tuple[Any, ...]], Callable[[], tuple[str, ...]]]:
    """What gives all that decides about a trace in this thread, and what gives the names of that.

    Before jax 0.10 nothing gives the names. There each is read by itself, and a setting that a
    server does not know is left out: its jax is another one, which has no such thing.
    """
    if hasattr(config, "trace_context_names"):
        return config.trace_context, config.trace_context_names
    found = {
        name: each
        for name, each in vars(config).items()
        if name in CONTEXTS or name.endswith("_context_manager")
    }
    found |= {name: holders[name] for name in CONFIG_DEFAULTS if name in holders}
    read, names = tuple(found.values()), tuple(found)
    return lambda: tuple(map(_value, read)), lambda: names


def _device_context(config: Any, mesh: Any) -> Any:
    """What `jax.set_mesh` sets: jax 0.11 has it in another module."""
    return config.device_context if hasattr(config, "device_context") else mesh.device_context


def _settings() -> Mapping[str, Any]:
    holders: Mapping[str, Any] = sys.modules["jax"].config._value_holders
    return holders


def _of_a_fresh_thread(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is there where nobody has set anything."""
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(read()), name="jaxd-settings")
    start_thread(thread)
    thread.join()
    return found[0]


def _check_refused(name: str, value: Any) -> None:
    if value != REFUSED[name]:
        raise PackingError(
            f"{name} is {value!r} in this process, and always {REFUSED[name]!r} on a server. Set "
            "it back, or run the function here with JAXD_INLINE=1"
        )


def _cannot_travel(name: str, value: Any) -> PackingError:
    return PackingError(
        f"the call is made inside of a context of jax ({name}: {value!r:.60}) that does not travel "
        "to a server. Enter it inside of the function, or run the function here with JAXD_INLINE=1"
    )


def _literal(name: str, value: Any) -> Any:
    if not is_literal(value):
        raise _cannot_travel(name, value)
    return value


# changes of settings ------------------------------------------------------------------------------

DISPATCHED: Final = frozenset(
    {
        *CONTEXTS,
        "layout_tracing_mode",
        "pallas_fuser_disable_nested_fuse",
        "pallas_tpu_interpret_mode_context_manager",
        "check_vma",
        "eager_constant_folding",
        "jax_allow_f16_reductions",
        "jax_auto_pcast",
        "jax_check_static_indices",
        "jax_custom_jvp3",
        "jax_custom_vjp3",
        "jax_debug_key_reuse",
        "jax_default_matmul_precision",
        "jax_embedded_constants_max_bytes",
        "jax_enable_x64",
        "jax_error_checking_behavior_divide",
        "jax_error_checking_behavior_nan",
        "jax_error_checking_behavior_oob",
        "jax_explicit_x64_dtypes",
        "jax_memory_fitting_level",
        "jax_numpy_dtype_promotion",
        "jax_numpy_rank_promotion",
        "jax_optimization_level",
        "jax_pallas_auto_assign_collective_ids",
        "jax_pallas_auto_assign_collective_ids_limit",
        "jax_pallas_enable_debug_checks",
        "jax_pallas_use_mosaic_gpu",
        "jax_ragged_dot_use_gpu_pallas_triton_lowering",
        "jax_raise_on_ppermute_sort_diff",
        "jax_random_seed_offset",
        "jax_remat3",
        "jax_remat_barrier_no_cotangents",
        "jax_remove_size_one_mesh_axis_from_type",
        "jax_scan3",
        "jax_softmax_custom_jvp",
        "jax_threefry_gpu_kernel_lowering",
        "jax_threefry_partitionable",
        "jax_use_direct_linearize",
        "jax_use_emit_pipeline_primitive",
        "jax_use_hlo_logistic_lowering",
        "jax_use_shardy_partitioner",
        "jax_use_simplified_jaxpr_constants",
        "jax_xla_profile_version",
    }
)
"""What jax's own dispatch, which is written in C++, tells calls apart by; all else is watched."""


class SettingsWatch:
    """Whether somebody has changed a setting that jax's own dispatch does not tell calls apart by.

    Such as jax_debug_nans. jax calls a hook of each setting when it is changed, for the process or
    in a context of a thread. Thread-safe; made once, and for good.

    Args:
        names: of the settings.

    Attributes:
        mark: another object after each change.

    Raises:
        LookupError: when there is one whose changes would not be noticed.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.mark = object()
        self._inside: dict[tuple[int, str], threading.Thread] = {}  # which is in a context of what
        holders = {name: _settings().get(name) for name in names}
        for name, holder in holders.items():
            if not (_is_flag(holder) or _is_state(holder)):
                raise LookupError(name)
        for name, holder in holders.items():
            if _is_flag(holder):
                _hook(holder, "_update_hook", self._changed)
            else:
                _hook(holder, "_update_global_hook", self._changed)
                noticed = functools.partial(self._changed_here, name, holder)
                _hook(holder, "_update_thread_local_hook", noticed)
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: it has the thread that forked, and no other one."""
        own = threading.get_ident()
        self._inside = {each: thread for each, thread in self._inside.items() if each[0] == own}

    def is_varied(self) -> bool:
        """Whether threads may differ in one of these settings.

        To be asked after `mark` was read, which is another one when threads come to differ. One
        that has ended within a context does not count, unless Python has not started it: it may
        run Python again.
        """
        return any(thread.is_alive() for thread in tuple(self._inside.values()))

    def _changed(self) -> None:
        self.mark = object()

    def _changed_here(self, name: str, holder: Any) -> None:
        """A context of this thread has begun or ended."""
        inside = threading.get_ident(), name
        if holder.get_local() is sys.modules["jax._src.config"].config_ext.unset:
            self._inside.pop(inside, None)
        else:
            self._inside[inside] = threading.current_thread()
        self.mark = object()  # last: see `is_varied`


def _is_flag(holder: Any) -> bool:
    """Whether it is one for the process, which has no contexts."""
    return hasattr(holder, "_update_hook")


def _is_state(holder: Any) -> bool:
    hooks = "_update_global_hook", "_update_thread_local_hook", "get_local"
    return all(hasattr(holder, name) for name in hooks)


def _hook(holder: Any, attribute: str, notice: Callable[[], None]) -> None:
    """Has something noticed before what jax itself does at such a change."""
    own = getattr(holder, attribute)

    def hook(value: Any) -> None:
        notice()
        if own is not None:
            own(value)

    setattr(holder, attribute, hook)


@functools.cache
def settings_watch() -> SettingsWatch | None:
    """That of this process, which has imported jax; None where a change would not be noticed."""
    try:
        return SettingsWatch(SettingsReader().names() - DISPATCHED)
    except (AttributeError, LookupError):
        return None


# contexts as plain data --------------------------------------------------------------------------


def _described(contexts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Those that are in force and travel, as `jaxd_protocol.jit.settings` takes them."""
    mesh = contexts.get("device_context")
    if _is_set(mesh):
        yield SET_MESH, _concrete(mesh)
    abstract = contexts.get("abstract_mesh_context_manager")
    if _is_set(abstract) and not _is_implied(abstract, mesh):
        yield ABSTRACT_MESH, _abstract(abstract)
    meshes = contexts.get("mesh_context_manager")
    if meshes:
        yield MESHES, tuple(map(_concrete, meshes))
    kind = contexts.get("compute_on_context_manager")
    if kind:
        yield COMPUTE_ON, kind
    metadata = contexts.get("xla_metadata_context_manager")
    if metadata is not None and metadata.val:
        items = tuple(sorted(metadata.val.items()))
        yield XLA_METADATA, _literal("xla_metadata_context_manager", items)


def _is_set(mesh: Any) -> bool:
    return mesh is not None and not mesh.empty


def _is_implied(abstract: Any, mesh: Any) -> bool:
    """Whether it need not be said: that of the mesh, or of the body of a `shard_map`.

    There a call is one of a single shard.
    """
    is_manual = any(kind.name == "Manual" for kind in abstract.axis_types)
    return is_manual or (_is_set(mesh) and mesh.abstract_mesh == abstract)


def _axes(mesh: Any) -> tuple[Any, ...]:
    names = _literal("axis names", tuple(mesh.axis_names))
    return names, tuple(mesh.axis_sizes), tuple(kind.name for kind in mesh.axis_types)


def _concrete(mesh: Any) -> tuple[Any, ...]:
    numbers = {device: number for number, device in enumerate(sys.modules["jax"].devices())}
    found = tuple(numbers.get(device) for device in mesh.devices.flat)
    if None in found:
        raise _cannot_travel("mesh", mesh)
    return *_axes(mesh), found


def _abstract(mesh: Any) -> tuple[Any, ...]:
    device = mesh.abstract_device
    if device is None or device.platform == sys.modules["jax"].default_backend():
        return *_axes(mesh), None  # whatever the server computes on
    return *_axes(mesh), (device.device_kind, device.num_cores, device.platform)
