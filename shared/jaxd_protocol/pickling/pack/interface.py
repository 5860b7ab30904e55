"""The interface of the pickler to the reducers of functions, classes and modules."""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, ModuleType
from typing import Any, Protocol

from jaxd_protocol.fingerprint.data_model import ReachedObjects
from jaxd_protocol.pickling.unpack.content_table import ClassId
from jaxd_protocol.pickling.unpack.rebuild import Filler


class Packer(Protocol):
    """Writes one function and all that it reaches.

    Attributes:
        blob: stands for the `PrivateModules`.
        reach: of the walk over the function.
    """

    blob: Any
    reach: ReachedObjects

    def replacements_of(self, value: Any) -> dict[str, Any]:
        """The replacements of its attributes that are only passed to be called back."""

    def by_name(self, value: Any, name: tuple[str, str]) -> Any:
        """An installed object under the name that leads to it."""

    def class_id(self, cls: Any, name: tuple[str, str] | None = None) -> ClassId:
        """The id of a class by value, of a primitive of jax, or of a constant with that name."""

    def nested(
        self, value: Any, made: tuple[Any, ...], filler: Filler, state: Callable[[], Any]
    ) -> Any:
        """The reduce tuple of a function or class: first it is made, then completed."""

    def cell(self, cell: CellType) -> Any:
        """A cell of a function's closure."""

    def boxed(self, owner: Any, reduced: tuple[Any, ...]) -> Any:
        """What is written by this reduce tuple; `owner` keeps it alive."""

    def namespace(self, namespace: dict[str, Any]) -> Any:
        """The globals of a function: those of its module, where there is one."""

    def names_of_module(self, module: ModuleType) -> set[str] | None:
        """What is read of a local module; None when all of it can be."""

    def value_or_placeholder(self, value: Any) -> Any:
        """The value, or a placeholder when it cannot be packed: it may never be used."""
