"""The names of jaxd's own objects in packed bytes: a part of the wire format.

Packed bytes are sent between two versions of jaxd and stay on disk. They name only this module of
jaxd, so that all others may move; this module, and the names in the table, never change.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from jaxd_protocol.errors import PackingError
from jaxd_protocol.packages.importable import find_object

HERE: Final = __name__


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_MODULES: Final = {
    "jaxd.interop.lazy_array": {"lazy_array": "_restore"},
    "jaxd_protocol.fingerprint.data_model": _same("ProcessValues", "Source"),
    "jaxd_protocol.fingerprint.values.configs": _same("ReadConfig", "ReadFlags"),
    "jaxd_protocol.fingerprint.values.reductions": _same(
        "new_object", "set_own_state", "set_state"
    ),
    "jaxd_protocol.fingerprint.values.settings": _same("ReadEnvironment"),
    "jaxd_protocol.fingerprint.values.struct_sequences": _same("make_struct_sequence"),
    "jaxd_protocol.packages.bare_objects": _same("object_of_name"),
    "jaxd_protocol.packages.importable": _same("find_object"),
    "jaxd_protocol.jax_objects.jit_objects": {"jax_jit": "make_jit"},
    "jaxd_protocol.jit.nnx_objects": _same("ObjectParts"),
    "jaxd_protocol.jit.nnx_updates": _same("Updating"),
    "jaxd_protocol.jax_objects.decomposition": {
        "empty_jax_object": "_make_empty",
        "fill_jax_object": "_set_attributes",
        "jax_device": "_find_device",
        "jax_exported": "_load_exported",
        "jax_weakref_cache": "_make_cache",
        "none": "_none",
    },
    "jaxd_protocol.jax_objects.registrations": {
        "make_part": "build_class",
        **_same("Registration"),
    },
    "jaxd_protocol.jax_objects.structures": _same("make_structure"),
    "jaxd_protocol.pickling.unpack.object_tokens": {"kept_object": "find_kept_object"},
    "jaxd_protocol.fingerprint.client_object": {"Live": "ClientObject"},
    "jaxd_protocol.fingerprint.values.instances": _same("ThreadLocal", "thread_local_of"),
    "jaxd_protocol.fingerprint.values.kinds": _same(
        *("class_attribute", "make_anew", "make_cached", "make_memory"),
        *("make_reference", "make_type_variable", "make_weak_method", "standard_stream"),
    ),
    "jaxd_protocol.jit.nested": _same("nested"),
    "jaxd_protocol.pickling.unpack.archives": _same("add_archive", "find_archived"),
    "jaxd_protocol.pickling.arrays": {
        "fill_object_array": "_fill_objects",
        **_same("make_array", "make_jax_array", "make_object_array", "make_scalar"),
        **_same("fill_array", "make_own_scalar"),
    },
    "jaxd_protocol.pickling.unpack.private_modules": {
        "blob": "PrivateModules",
        **_same("add_sources", "installed_module", "patched_module"),
        **_same("import_submodules", "make_lazy_submodules"),
    },
    "jaxd_protocol.pickling.unpack.rebuild": {
        "fill_part": "set_attributes",
        **_same(
            *("fill", "fill_cell", "fill_class", "fill_config", "fill_constant", "fill_enum"),
            *("fill_function", "fill_instance", "fill_later", "fill_mapping", "fill_module"),
            *("fill_primitive", "fill_set", "make_cell", "make_class", "make_code"),
            *("make_constant", "make_context_variable", "make_enum", "make_function"),
            *("make_function_in", "make_instance", "make_library_function", "make_mapping"),
            *("make_module", "make_placeholder", "make_primitive", "namespace_of", "same"),
        ),
    },
    "jaxd_protocol.pickling.unpack.pytest_asserts": {"pytest_asserts": ""},
    "jaxd_protocol.pickling.unpack.unpickler": {
        "interned": "intern_callable",
        "interned_class": "intern_class",
    },
    "jaxd_protocol.jit.transforms.transformed_function": {
        "Transformed": "TransformedFunction",
        **_same("Batched"),
    },
}
"""For each module of today: names in packed bytes, and the names of these objects in the module.

An empty name in the module is the module itself.
"""

PLACES: Final = MappingProxyType(
    {name: (module, there) for module, names in _MODULES.items() for name, there in names.items()}
)
"""For each name in packed bytes the module and the name of the object today."""

_NAMES: Final = {place: name for name, place in PLACES.items()}


def name_of(module: str, name: str) -> str | None:
    """The name in packed bytes of an object, given where it is; None when it has none."""
    return _NAMES.get((module, name))


def find(name: str) -> Any:
    """The object of that name, whose module is imported if necessary.

    Raises:
        PackingError: when there is none.
    """
    place = PLACES.get(name)
    if place is None:
        raise PackingError(
            f"what was packed needs {name!r} of jaxd, which the jaxd here does not have. Install "
            "the same version of jaxd on both ends."
        )
    return find_object(*place)


def call(name: str, *args: Any) -> Any:
    """Calls the function of that name: for the `__reduce__` of jaxd's own objects.

    Raises:
        PackingError: as `find`.
        Exception: whatever it raises.
    """
    return find(name)(*args)


def __getattr__(name: str) -> Any:
    """Finds classes whose `__module__` is this module, since keys name classes by it."""
    if name not in PLACES:
        raise AttributeError(name)
    return find(name)
