"""Reads packed bytes: on the server, and only from authenticated clients."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from jaxd_protocol.errors import MissingPackage, NotPermitted
from jaxd_protocol.fingerprint.data_model import Source
from jaxd_protocol.pickling.unpack.archives import UnpackedArchive
from jaxd_protocol.pickling.unpack.content_table import ClassId, content_table
from jaxd_protocol.pickling.unpack.private_modules import PrivateModules


class UnpicklingGate:
    """Whether this process may unpickle: for all clients, or for none.

    A server that takes exported programs only never does.
    """

    def __init__(self) -> None:
        self._is_shut = False

    def shut(self) -> None:
        """From now on nothing is unpickled, and nothing is imported by a name from a client."""
        self._is_shut = True

    def require_open(self, what: str) -> None:
        """Checks that code of others may run in this process.

        Args:
            what: the data that would be unpickled, for people.

        Raises:
            NotPermitted: when it may not.
        """
        if self._is_shut:
            raise NotPermitted(
                f"this server takes exported programs and data (--accept exported), and opens no "
                f"{what}. Pass arrays and numbers in dicts, lists and tuples, from a client of the "
                "same jaxd, or use a server that takes code."
            )


unpickling_gate = UnpicklingGate()
"""The gate of this process."""


class Unpacked(NamedTuple):
    """An unpacked function.

    Attributes:
        function: with modules, classes and builtins of its own.
        modules, sources, patched_modules: as in `PrivateModules`.
        archives: the user's packages that were sent as source.
    """

    function: Any
    modules: dict[str, ModuleType]
    sources: dict[str, Source]
    patched_modules: dict[str, ModuleType]
    archives: UnpackedArchive | None = None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        """The object that the pickler's `persistent_id` has returned."""
        return pid

    def find_class(self, module: str, name: str) -> Any:
        """As pickle does, with numpy's modules under the names of either major version."""
        try:
            return super().find_class(module, name)
        except ModuleNotFoundError as error:
            old, new = "numpy.core", "numpy._core"
            for given, other in ((new, old), (old, new)):
                if module == given or module.startswith(given + "."):
                    return super().find_class(other + module[len(given) :], name)
            if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
                raise  # the module is there, and something that it imports is not
            raise MissingPackage(
                f"a function or an argument needs {module}.{name}, and {error.name} is not "
                "installed on the server. Install it where the server runs."
            ) from error


def unpack_function(data: bytes | memoryview) -> Unpacked:
    """The function that `pack_function` has packed.

    Raises:
        PackingError: when the server's libraries have no such code.
        MissingPackage: when the server does not have a package that the function uses.
        Exception: whatever code of the user's raises that runs when objects are made again.
    """
    with content_table.unpacking():
        blob, _, function = _unpickle(data, ())
    assert isinstance(blob, PrivateModules)
    assert isinstance(blob.arrived, UnpackedArchive | None)
    return Unpacked(function, blob.modules, blob.sources, blob.patched_modules, blob.arrived)


def intern_callable(content: bytes, data: bytes) -> Any:
    """A callable or class of an argument: the same object whenever the content is the same."""
    return content_table.callable_of(content, lambda: unpack_function(data).function)


def intern_class(name: tuple[bytes, str, str], data: bytes) -> type:
    """A class of the user's own that an argument holds an instance of.

    Args:
        name: its `ClassId`.
        data: the packed class; empty where it came with another part of the argument.
    """
    found = content_table.find_class(ClassId(*name))
    if found is None:
        made: Any = unpack_function(data).function
        found = content_table.find_class(ClassId(*name)) or made
    return found


def unpack(data: bytes | memoryview, buffers: Sequence[Any] = ()) -> Any:
    """The object that `pack` has packed; also what `cloudpickle.dumps` has.

    Raises:
        Exception: as `unpack_function`.
    """
    return _unpickle(data, buffers)


def _unpickle(data: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    unpickling_gate.require_open("packed code or objects")
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()
