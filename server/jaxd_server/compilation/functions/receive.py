"""Unpacks a function that was just received and verifies its fingerprint.

The client's key is not taken on trust. The server walks over what it unpacked, with the client's
decisions and package versions, and must compute the same digest. Where it does not, something was
lost or changed on the way, and what is built for this client must not answer another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from jaxd_protocol.errors import PackingError, ProtocolError
from jaxd_protocol.fingerprint import (
    ListedCallback,
    PackedFor,
    Part,
    WalkResult,
    id_in_scope,
    one_moment,
    walk,
)
from jaxd_protocol.fingerprint.data_model import CallbackCandidates
from jaxd_protocol.fingerprint.process_view import ClientProcess
from jaxd_protocol.fingerprint.values.reflection import of_classes
from jaxd_protocol.jit.options import fingerprint_of
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.pickling.unpack.archives import UnpackedArchive, forget_archive
from jaxd_protocol.pickling.unpack.content_table import ClassId, content_table
from jaxd_protocol.pickling.unpack.unpickler import Unpacked, unpack, unpack_function
from jaxd_server.codec.object_references import object_numbers
from jaxd_server.jax_compat.config import restore_defaults
from jaxd_server.user_code.client_process import Ask, ProcessReads, reading
from jaxd_server.user_code.mutation_guard import MutationGuard


@dataclass(frozen=True, slots=True)
class UnpackedFunction:
    """An unpacked function.

    Attributes:
        function: the callable.
        doubt: why it is not what its key says, for people; None when it is.
        objects: everything it reaches that has a number in the walk, by number.
        targets: what of its client's it may have called back.
        listed: what its client lists beside that.
        captured: what of it a trace could change.
        reads: what it has read of its client's process.
        archive: the packages that came as source with it.
    """

    function: Callable[..., Any]
    doubt: str | None = None
    objects: tuple[Any, ...] = ()
    targets: CallbackCandidates = field(default_factory=CallbackCandidates)
    listed: tuple[ListedCallback, ...] = ()
    captured: MutationGuard = field(default_factory=MutationGuard)
    reads: ProcessReads = field(default_factory=ProcessReads)
    archive: UnpackedArchive | None = None

    @contextmanager
    def traced_for(self, ask: Ask) -> Iterator[None]:
        """Within it, its code finds its client's process.

        Raises:
            PackingError: when it reads something that its client does not tell.
        """
        try:
            with reading(self.reads, ask):
                yield
        finally:
            if self.archive is not None:
                self.archive.found.update(self.reads.found)
                if self.captured.is_spoiled and not self.archive.is_spoiled:
                    self.archive.is_spoiled = True
                    forget_archive(self.archive)

    def fits(self, manifest: FunctionManifest | None) -> bool:
        """Whether it can be traced for a client that describes it so."""
        if self.captured.is_spoiled or self.reads.refused is not None:
            return False
        if self.archive is not None and self.archive.is_spoiled:
            return False
        return {*self.reads.recorded} <= {*(() if manifest is None else manifest.reads)}


def receive_function(
    name: str, manifest: FunctionManifest | None, fingerprint: bytes, data: bytes | memoryview
) -> UnpackedFunction:
    """Unpacks a function and checks its fingerprint.

    Args:
        name: its name.
        manifest: its client's; None from a client that names functions by their bytes.
        fingerprint: the one that was requested.
        data: the packed function.

    Raises:
        ProtocolError: when the bytes are not those that were requested.
        PackingError: when it reads a setting of an installed class that is another one here.
        Exception: whatever unpacking raises, such as ImportError.
    """
    if manifest is None:
        return _receive_by_bytes(fingerprint, data)
    # until then, other functions do not share its classes; nothing changes them meanwhile
    with content_table.unpacking(), one_moment():
        arrived = unpack_function(data)
        restore_defaults()  # a package may have set some when it was imported; calls bring theirs
        there = manifest.there({**arrived.patched_modules, **arrived.modules}, arrived.sources)
        walked = _walk_over(name, manifest, arrived, there)
        sent_for = PackedFor(arrived.archives)
        if walked is not None:
            readers = of_classes(walked.reach.readers)
            scope = walked.reach.scope(manifest.fingerprint)
            sent_for = PackedFor(arrived.archives, readers, scope)
        content_table.discard_wrong(lambda name, cls: _is_right(name, cls, there, sent_for))
    made = partial(UnpackedFunction, listed=manifest.callbacks, archive=arrived.archives)
    if walked is None or not manifest.shared:
        # its key is like no other
        targets = CallbackCandidates() if walked is None else walked.reach.targets
        captured = (
            MutationGuard([arrived.function], manifest.ignored)
            if walked is None
            else MutationGuard.of_walk(walked, manifest.ignored)
        )
        return made(function=arrived.function, targets=targets, captured=captured)
    found = walked.fingerprint
    _refuse_settings(name, manifest.parts, found.parts)
    doubt = None
    objects = tuple(walked.reach.numbered)
    if found.digest == manifest.fingerprint:
        object_numbers.add(manifest.fingerprint, objects)
    else:  # the numbers may not be those of the client
        doubt = (
            f"{name} is not shared with other processes: on the server it has another "
            f"fingerprint than here ({_differing(manifest.parts, found.parts)}). Was it changed "
            "while it was sent? Else set extra_key= and report this."
        )
    return made(
        function=arrived.function,
        doubt=doubt,
        objects=objects,
        targets=walked.reach.targets,
        captured=MutationGuard.of_walk(walked, manifest.ignored),
    )


def _walk_over(
    name: str, manifest: FunctionManifest, arrived: Unpacked, there: ClientProcess
) -> WalkResult | None:
    """The walk over what has arrived; None where it cannot be made, and need not."""
    try:
        return walk(
            arrived.function, name, there, manifest.ignored, arrived.archives, manifest.listed
        )
    except PackingError:
        if manifest.shared:
            raise
        return None  # it could not be compared either


def _receive_by_bytes(fingerprint: bytes, data: bytes | memoryview) -> UnpackedFunction:
    """Unpacks a function whose fingerprint is that of its bytes."""
    if fingerprint_of(data) != fingerprint:
        raise ProtocolError(
            "the client sent other code than the fingerprint stands for. "
            "Install the same jaxd on both sides."
        )
    return UnpackedFunction(unpack(data))


def _is_right(name: ClassId, cls: Any, there: ClientProcess, sent_for: PackedFor) -> bool:
    """Whether a class has the content that its id says, so that other functions may share it."""
    archives, readers, scope = sent_for
    walked = walk(cls, name.qualname, there, archives=archives, readers=readers)
    found = walked.fingerprint
    return id_in_scope(found.digest, scope) == name.content or bool(found.unshared)


def _refuse_settings(name: str, ours: tuple[Part, ...], theirs: tuple[Part, ...]) -> None:
    there = {part[:2]: part for part in theirs if part.kind in _CHANGED}
    for part in ours:
        if part.kind in _CHANGED and part.digest != there.get(part[:2], part).digest:
            raise PackingError(
                f"{name} reads {part.name}, which is {part.shown} in this process and "
                f"{there[part[:2]].shown} on the server: {_CHANGED[part.kind]}"
            )


_CHANGED: Final = {
    "installed": "an installed class or object was changed. Pass the value as an argument, or set "
    "it in a subclass or object of your own.",
    "archived": "it was changed after the import, and ship='source' sends what the source makes. "
    "Pass the value as an argument, or leave ship= out.",
}


def _differing(ours: tuple[Part, ...], theirs: tuple[Part, ...]) -> str:
    there = {(part.kind, part.name): part.digest for part in theirs}
    here = {(part.kind, part.name): part.digest for part in ours}
    names = [name for name in here | there if here.get(name) != there.get(name)]
    return ", ".join(name for _, name in names[:5]) or "in how its parts hang together"
