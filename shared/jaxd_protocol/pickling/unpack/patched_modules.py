"""Installed modules as the code of a client finds them on a server, where they differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, NoReturn

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.data_model import ProcessValues


class PatchedModule(ModuleType):
    """An installed module with some attributes of a client's; the others are the server's own."""

    def __init__(self, real: ModuleType, attributes: Mapping[str, Any]) -> None:
        super().__init__(real.__name__, real.__doc__)
        for name in ("__package__", "__path__", "__spec__", "__file__"):
            if hasattr(real, name):
                vars(self)[name] = getattr(real, name)
        vars(self)["_jaxd_real"] = real
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_jaxd_real"], name)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(vars(self)["_jaxd_real"])} - {"_jaxd_real"})


# the process of a client, for modules whose source runs here -------------------------------------


_refusals: ContextVar[list[PackingError] | None] = ContextVar("_refusals", default=None)


@contextmanager
def refusals_raised() -> Iterator[None]:
    """Raises, at its end, what was refused within it and has been caught by the code itself.

    Code that takes a default where a read fails would go on with the wrong one.

    Raises:
        PackingError: the first that was refused.
    """
    before, found = _refusals.get(), list[PackingError]()
    token = _refusals.set(found)
    try:
        yield
    except BaseException as error:
        if found and error is not found[0] and isinstance(error, Exception):
            raise found[0] from error
        raise
    finally:
        _refusals.reset(token)
        if before is not None:
            before += found
    if found:
        raise found[0]


class SourceProcess:
    """The process in which the source of a client's module runs: what it names of its client's.

    What it does not name, and so was not sent, is refused: this process has its own environment,
    arguments and folder.

    Args:
        module: the module.
        values: what its source finds in the client's process.
    """

    def __init__(self, module: str, values: ProcessValues) -> None:
        self._module = module
        environment = ClientEnvironment(values.variables, self.refuse)
        nothing = ClientEnvironment((), self.refuse)
        arguments: Any = values.arguments
        folder, variables = "the current folder", "variables of the environment"
        getcwd = dict.fromkeys(("getcwd", "getcwdb"), self._refusing(folder))
        self._attributes: dict[str, dict[str, Any]] = {
            "os": {
                **getcwd,
                "environ": environment,
                "environb": nothing,
                "getenv": environment.get,
                "getenvb": nothing.get,
            },
            "posix": {**getcwd, "environ": nothing},
            "posixpath": {
                "expandvars": self._refusing(variables),
                "expanduser": self._refusing(variables),
                "abspath": self._of_absolute(os.path.abspath, folder),
                "realpath": self._of_absolute(os.path.realpath, folder),
            },
            "io": {"open": self.open},
            "sys": {
                "argv": _Refused(self.refuse) if arguments is None else list(arguments),
                "orig_argv": _Refused(self.refuse),
            },
        }
        self._patched: dict[str, PatchedModule] = {}

    def module(self, real: ModuleType) -> ModuleType:
        """A module as that source finds it."""
        name = real.__name__
        if name not in self._attributes and name != "argparse":
            return real
        made = self._patched.get(name)
        if made is None:
            attributes = self._attributes.get(name) or self._parser(real)
            made = self._patched[name] = PatchedModule(real, attributes)
            path = getattr(real, "path", None)
            if name == "os" and isinstance(path, ModuleType):
                vars(made)["path"] = self.module(path)
        return made

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Replaces `open`: nothing is read."""
        if not {"w", "a", "x"} & set(mode):
            self.refuse("a file")
        return open(file, mode, *args, **kwargs)

    def refuse(self, what: str) -> NoReturn:
        """Refuses to show something of this process.

        Raises:
            PackingError: always.
        """
        error = PackingError(
            f"module {self._module} runs on the server, because it is imported inside of the "
            f"function or sent with ship='source', and reads {what} there, which is not its "
            "client's. Import it at the top of the file, without ship='source': then what it has "
            "read counts. A variable whose name stands as text in the module, as in "
            "os.environ['NAME'], may be read in either case."
        )
        found = _refusals.get()
        if found is not None:
            found.append(error)
        raise error

    def _refusing(self, what: str) -> Callable[..., NoReturn]:
        def refuse(*_: Any, **__: Any) -> NoReturn:
            self.refuse(what)

        return refuse

    def _of_absolute(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        """A function of paths, for those that do not depend on the current folder."""

        def of_absolute(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not os.path.isabs(path):
                self.refuse(what)
            return function(path, *args, **kwargs)

        return of_absolute

    def _parser(self, argparse: Any) -> dict[str, Any]:
        """A parser that does not parse the arguments of this process."""
        process = self

        class ArgumentParser(argparse.ArgumentParser):  # type: ignore[misc]
            def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
                if args is None:
                    process.refuse("the arguments of the command")
                return super().parse_known_args(args, namespace)

        return {"ArgumentParser": ArgumentParser}


class _Refused(Sequence[str]):
    """Arguments that were not sent."""

    def __init__(self, refuse: Callable[[str], NoReturn]) -> None:
        self._refuse = refuse

    def __getitem__(self, index: Any) -> Any:
        self._refuse("the arguments of the command")

    def __len__(self) -> int:  # noqa: PLE0303  it returns nothing at all
        self._refuse("the arguments of the command")


class ClientEnvironment(MutableMapping[str, str]):
    """The variables of a client's environment that were sent.

    None can be set: this process is other clients' as well, and libraries read its own.

    Args:
        variables: names and values; None where the client has none of that name.
        refuse: raises, where another one is read, or all of them are.
    """

    def __init__(
        self,
        variables: tuple[tuple[str, str | None], ...],
        refuse: Callable[[str], NoReturn],
    ) -> None:
        self._values = dict(variables)
        self._refuse = refuse

    def __getitem__(self, name: str) -> str:
        if name not in self._values:
            self._refuse(f"the variable {name!r} of the environment")
        value = self._values[name]
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: str) -> None:
        if self._values.get(name) != value:
            self._refuse(f"and sets the variable {name!r} of the environment")

    def __delitem__(self, name: str) -> None:
        self[name]
        self._refuse(f"and removes the variable {name!r} of the environment")

    def __iter__(self) -> Iterator[str]:
        self._refuse("the whole environment")

    def __len__(self) -> int:  # noqa: PLE0303  it returns nothing at all
        self._refuse("the whole environment")

    def copy(self) -> dict[str, str]:
        """Refused: it would be all of it."""
        return dict(self)

    def __or__(self, other: Any) -> dict[str, str]:
        return {**self, **other}

    def __ror__(self, other: Any) -> dict[str, str]:
        return {**other, **self}
