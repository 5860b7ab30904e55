"""What a function means, as the server will know it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from jaxd.option_values import Ship
from jaxd.own_objects import OwnObjects
from jaxd.results import ResultReader
from jaxd_protocol.calls import Options, function_key
from jaxd_protocol.errors import TracedReadWarning, UnsharedWarning
from jaxd_protocol.fingerprint import Fingerprint, Listed, Walked, walk
from jaxd_protocol.fingerprint.facts import Targets
from jaxd_protocol.fingerprint.shipping import shipping
from jaxd_protocol.meanings import Meaning
from jaxd_protocol.statics import Statics, statics_of
from jaxd_protocol.trees.references import mark_of

if TYPE_CHECKING:
    from jaxd_protocol.fingerprint.archives import LocalArchives

__all__ = ["Identity", "Spec"]

_BY_VALUE: Final = nullcontext()


class Spec:
    """A function with options and configuration, by the key that names it on the wire.

    Attributes:
        key: sixteen bytes.
        identity: the function.
        options: packed `Options`.
        statics: which arguments are static.
    """

    __slots__ = ("__weakref__", "identity", "key", "options", "statics")

    def __init__(
        self, identity: Identity, options: Options, statics: Statics | None = None
    ) -> None:
        self.identity = identity
        self.statics = identity.statics if statics is None else statics
        self.options = options.to_bytes()
        self.key = function_key(identity.fingerprint, options)


class Identity:
    """A function as it was when somebody looked at it.

    Attributes:
        name: what people call it.
        meaning: its fingerprint, and what that is made of.
        specs: one for each configuration that it was called under.
        pinned: for a signature that is called with, the identity that stands for such calls.
        forms: skeletons of results that were asked for, by key and arguments.
        installed: which state of the installed packages it was made with; see `upgrades`.
        is_fresh: whether nobody has looked at it but the call for which it was made.
        reader: rebuilds its results, as instances of the classes that it reaches.
        statics: its static arguments.
        archives: the packages that travel as files; None when code travels by value.
        callbacks: what `callbacks=` lists.
        takes_arguments: whether a call can have its own arguments called back.

    Raises:
        PackingError: when it reaches something that can be neither in a key nor carried.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        ignored: tuple[str, ...] = (),
        installed: int = 0,
        ship: Ship = "value",
        callbacks: tuple[Callable[..., Any], ...] = (),
    ) -> None:
        self.callbacks = callbacks
        self.installed = installed
        self.name = getattr(function, "__qualname__", None) or type(function).__qualname__
        self.statics: Statics = statics_of(function, options)
        self.specs: dict[Any, Spec] = {}
        self.pinned: dict[bytes, Identity] = {}
        self.forms: dict[bytes, bytes] = {}
        self._function = function
        self.archives = _archives() if ship == "source" else None
        listed = Listed(callbacks) if callbacks else None
        self._walked = walk(
            function, self.name, ignore=ignored, archives=self.archives, listed=listed
        )
        self._packed: bytes | None = None
        self.is_fresh = True
        self.after_fork()
        self.takes_arguments = self.targets.takes_arguments and not options.transformations
        told = () if listed is None else listed.entries
        self.meaning = Meaning.of(self._walked.fingerprint, ignored, told)
        self.reader = ResultReader({}, _own_objects(self.name, self._walked))
        if self.archives is not None:
            self.archives.close()
            self.reader.learn(self.archives.objects())

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have been packing."""
        self._packing = threading.Lock()  # guards _packed

    @property
    def fingerprint(self) -> bytes:
        """Sixteen bytes that stand for the function."""
        return self.meaning.fingerprint

    @property
    def found(self) -> Fingerprint:
        """All that the walk has to say."""
        return self._walked.fingerprint

    @property
    def holds(self) -> bool:
        """Whether nothing has changed since, as far as that is looked at."""
        return self._walked.guards.hold()

    @property
    def is_complete(self) -> bool:
        """Whether all changes are noticed: nothing that the function reaches is pinned."""
        return self._walked.guards.complete

    @property
    def code(self) -> bytes:
        """The packed function. Only a server that does not know it asks for this.

        Raises:
            PackingError: when something that it reaches cannot travel.
        """
        from jaxd_protocol.packing import pack_function  # a hit needs none of it

        with self._packing:
            if self._packed is None:
                what = f"function {self.name!r}"
                with shipping(self.archives):
                    self._packed = pack_function(self._function, what, self._walked.reach)
            return self._packed

    @property
    def targets(self) -> Targets:
        """What a server may have called back, beside what `callbacks=` lists."""
        return self._walked.reach.targets

    @property
    def calls_back(self) -> bool:
        """Whether a server may have anything called back."""
        found = self.targets
        return bool(found.objects or found.codes or found.parameters or self.callbacks)

    def travelling(self) -> AbstractContextManager[None]:
        """Around the packing of its arguments and the reading of its results."""
        return _BY_VALUE if self.archives is None else shipping(self.archives)

    def warn(self) -> None:
        """Says what no key can hold, and what is not shared; for the first identity of a function.

        The warnings point to the code of the user's that calls.
        """
        if not (self.found.unshared or self.found.notes):
            return
        from jaxd.frames import users_level

        for found in self.found.unshared:
            text = (
                f"{found.path} is a {found.type_name}, which has no content that could be in a "
                f"key ({found.reason}): this function is compiled anew in every process. Make it "
                "inside of the function or pass what it yields as an argument; or leave it out "
                f"of the key with persistent_call(ignore={_last(found.path)!r}), and tell "
                "versions apart with extra_key=."
            )
            warnings.warn(text, UnsharedWarning, users_level())
        for note in self.found.notes:
            text = (
                f"{note.path} reads {note.what} while it is traced ({note.where}): the program "
                "keeps the value of that moment, for every client. Pass it as an argument."
            )
            warnings.warn(text, TracedReadWarning, users_level())


def _archives() -> LocalArchives:
    from jaxd_protocol.fingerprint.archives import LocalArchives  # few functions travel so

    return LocalArchives()


def _last(path: str) -> str:
    return path.rpartition(" → ")[2]


def _own_objects(name: str, walked: Walked) -> OwnObjects:
    """What a function reaches, as its results name it."""
    found = walked.fingerprint
    mark = b"" if found.unshared else mark_of(found.digest)
    reach = walked.reach
    return OwnObjects(name, mark, reach.numbered, found.packages, reach.objects, reach.installed)
