"""The content of a function's fingerprint as plain values, which a server can check and compare.

The server walks over what it unpacked with the client's decisions (which modules are local, which
attributes of installed modules count) and the client's package versions; the digest must be the
same. It also keeps the parts, to report later how another function differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.fingerprint.data_model import (
    CallbackList,
    Fingerprint,
    ListedCallback,
    Part,
    Source,
)
from jaxd_protocol.fingerprint.process_view import SALT
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import parameters_of
from jaxd_protocol.packages.distributions import Package
from jaxd_protocol.pytree.literals import dump_literal

if TYPE_CHECKING:
    from jaxd_protocol.fingerprint.process_view import ClientProcess
    from jaxd_protocol.messages.recorded_reads import RecordedRead


class FunctionManifest(NamedTuple):
    """A fingerprint with what it was made of and from.

    Attributes:
        fingerprint: the digest of the walk; sixteen bytes.
        salt: `SALT` of the client.
        parts, packages, local, carried: see `Fingerprint`.
        ignored: what the user excludes from the walk.
        shared: whether all of it has a content; else it can belong only to its own client.
        callbacks: the entries of `callbacks=`.
        reads: what the function was found to read of its client's process, as that is now.
    """

    fingerprint: bytes
    salt: bytes = SALT
    parts: tuple[Part, ...] = ()
    packages: Mapping[str, Package] = {}
    local: Mapping[str, bool] = {}
    carried: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()
    shared: bool = True
    callbacks: tuple[ListedCallback, ...] = ()
    reads: tuple[RecordedRead, ...] = ()

    @property
    def recorded_fingerprint(self) -> bytes:
        """Sixteen bytes that stand for the function together with what it reads."""
        if not self.reads:
            return self.fingerprint
        from jaxd_protocol.messages.recorded_reads import recorded_fingerprint  # few have any

        return recorded_fingerprint(self.fingerprint, self.reads)

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """What the recorded fingerprint was made of."""
        return (*self.parts, *(each.part for each in self.reads))

    @classmethod
    def of(
        cls,
        found: Fingerprint,
        ignored: tuple[str, ...] = (),
        callbacks: tuple[ListedCallback, ...] = (),
    ) -> FunctionManifest:
        """The manifest of a fingerprint that was made in this process."""
        return cls(
            found.digest,
            SALT,
            found.parts,
            found.packages,
            found.local,
            found.carried,
            ignored,
            not found.unshared,
            callbacks,
        )

    def with_settings(self, settings: Iterable[tuple[str, str]]) -> FunctionManifest:
        """That of the function under settings of libraries that no fresh process has.

        Args:
            settings: names and contents; where there are none, it is the same.
        """
        rows = tuple(settings)
        if not rows:
            return self
        fingerprint = blake2b(dump_literal((self.fingerprint, rows)), digest_size=16).digest()
        parts = [
            Part("installed", name, blake2b(content.encode(), digest_size=8).digest(), content)
            for name, content in rows
        ]
        return self._replace(fingerprint=fingerprint, parts=(*self.parts, *parts))

    @property
    def listed(self) -> CallbackList | None:
        """The entries of `callbacks=` for a walk on the server; None where there are none."""
        return CallbackList(entries=self.callbacks) if self.callbacks else None

    def there(
        self, modules: Mapping[str, ModuleType], sources: Mapping[str, Source]
    ) -> ClientProcess:
        """The view of the client's process for a walk on the server.

        Args:
            modules: the client's local modules, as they arrived.
            sources: those of them that are not imported yet.
        """
        # clients do not need it
        from jaxd_protocol.fingerprint.process_view import ClientProcess
        from jaxd_protocol.pickling.unpack.private_modules import came_with

        reported = self.salt, self.packages, self.local, self.carried
        return ClientProcess(*reported, modules, sources, came_with)

    def to_message(self) -> tuple[Any, ...]:
        """Plain values for the wire."""
        return (
            self.fingerprint,
            self.salt,
            tuple(map(tuple, self.parts)),
            tuple((module, *package) for module, package in self.packages.items()),
            tuple(self.local.items()),
            tuple(sorted(self.carried)),
            self.ignored,
            self.shared,
            tuple(map(tuple, self.callbacks)),
            tuple(map(tuple, self.reads)),
        )

    @classmethod
    def from_message(cls, message: Any) -> FunctionManifest:
        """Reads what `to_message` wrote.

        Raises:
            ProtocolError: when it is something else.
        """
        try:
            fingerprint, salt, parts, packages, local, carried, ignored, shared, *rest = message
            listed, reads = rest
            if reads:
                from jaxd_protocol.messages.recorded_reads import to_recorded_reads

                reads = to_recorded_reads(reads)
            read = cls(
                fingerprint,
                salt,
                tuple(Part(*part) for part in parts),
                {module: Package(*package) for module, *package in packages},
                dict(local),
                frozenset(carried),
                tuple(ignored),
                shared,
                tuple(ListedCallback(*entry) for entry in listed),
                reads,
            )
        except (TypeError, ValueError) as error:
            raise ProtocolError("the manifest of a function cannot be read.") from error
        if not read._is_typed():
            raise ProtocolError("the manifest of a function has values of other types.")
        return read

    def _is_typed(self) -> bool:
        texts = [*self.packages, *self.local, *self.carried, *self.ignored]
        texts += [text for part in self.parts for text in (*part[:2], *part[3:])]
        texts += [text for package in self.packages.values() for text in package[:2]]
        texts += [text for entry in self.callbacks for text in entry[1:]]
        data = [self.fingerprint, self.salt]
        data += [part.digest for part in self.parts]
        data += [package.digest for package in self.packages.values()]
        flags = [self.shared, *self.local.values()]
        return (
            all(type(text) is str for text in texts)
            and all(type(one) is bytes for one in data)
            and all(type(flag) is bool for flag in flags)
            and all(type(entry.owner) is int for entry in self.callbacks)
        )


class FunctionDescriptor(NamedTuple):
    """A function with its options.

    Attributes:
        name: its qualified name.
        fingerprint: its fingerprint; empty where it is unknown.
        options: how it is compiled.
        parts: what the fingerprint was made of; empty where that is unknown.
        parameters: see `parameter_names`.
        shared: whether all of it has a content; else no two processes have it in common.
    """

    name: str
    fingerprint: bytes
    options: Options
    parts: tuple[Part, ...] = ()
    parameters: tuple[str, ...] = ()
    shared: bool = True

    @property
    def short_name(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def where(self) -> str:
        """File and line of the function itself, its first part; empty where that is unknown."""
        return self.parts[0].where if self.parts else ""

    def to_message(self) -> tuple[Any, ...]:
        """Plain values for the wire."""
        parts = tuple(tuple(part) for part in self.parts)
        options = self.options.to_bytes()
        return self.name, self.fingerprint, options, parts, self.parameters, self.shared

    @classmethod
    def from_message(cls, message: Any) -> FunctionDescriptor:
        """Reads what `to_message` wrote.

        Raises:
            ProtocolError: when it is something else.
        """
        try:
            name, fingerprint, options, parts, parameters, shared = message
            read = tuple(Part(*part) for part in parts)
            texts = [name, *parameters]
        except (TypeError, ValueError) as error:
            raise ProtocolError("the description of a function cannot be read.") from error
        texts += [text for part in read for text in (*part[:2], *part[3:])]
        if not all(type(text) is str for text in texts):
            raise ProtocolError("the description of a function has values of other types.")
        return cls(
            name, fingerprint, Options.from_bytes(options), read, tuple(parameters), bool(shared)
        )


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters that can be given by position; ``*rest`` for any number of them.

    Empty where the function has no signature.
    """
    return tuple(
        f"*{each.name}" if each.kind is each.VAR_POSITIONAL else each.name
        for each in parameters_of(function)
        if each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD)
    )
