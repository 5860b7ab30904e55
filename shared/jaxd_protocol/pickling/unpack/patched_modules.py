"""Installed modules as the code of a client finds them on a server, where they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any, Final, NoReturn

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


class SourceProcess:
    """The process in which the source of a client's module runs: what it names of its client's.

    What it does not name, and so was not sent, is refused: this process has its own environment,
    arguments, folder and files.

    Args:
        module: the module.
        values: what its source finds in the client's process.
    """

    def __init__(self, module: str, values: ProcessValues) -> None:
        self._module = module
        environment = ClientEnvironment(values.variables, self._refuse)
        everything = ClientEnvironment((), self._refuse)
        system = {} if values.arguments is None else {"argv": list(values.arguments)}
        self._attributes: dict[str, dict[str, Any]] = {
            "os": {
                "environ": environment,
                "getenv": environment.get,
                "environb": everything,
                "getenvb": everything.get,
                "getcwd": self._refusing("the current folder"),
                "getcwdb": self._refusing("the current folder"),
            },
            "posixpath": {"expandvars": self._refusing("variables of the environment")},
            "sys": system,
        }
        self._patched: dict[str, PatchedModule] = {}
        self.open: Final = self._refusing("a file")

    def module(self, real: ModuleType) -> ModuleType:
        """A module as that source finds it."""
        name = real.__name__
        attributes = self._attributes.get(name)
        if not attributes:
            return real
        made = self._patched.get(name)
        if made is None:
            made = self._patched[name] = PatchedModule(real, attributes)
            path = getattr(real, "path", None)
            if name == "os" and isinstance(path, ModuleType):
                vars(made)["path"] = self.module(path)
        return made

    def _refusing(self, what: str) -> Callable[..., NoReturn]:
        def refuse(*_: Any, **__: Any) -> NoReturn:
            self._refuse(what)

        return refuse

    def _refuse(self, what: str) -> NoReturn:
        raise PackingError(
            f"module {self._module} runs on the server, because it is imported inside of the "
            f"function, and reads {what} there, which is not its client's. Import it at the top "
            "of the file: then what it has read counts. A variable whose name stands as text in "
            "the module, as in os.environ['NAME'], may be read in either case."
        )


class ClientEnvironment(MutableMapping[str, str]):
    """The variables of a client's environment that were sent; what is set here stays here.

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
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        self[name]
        self._values[name] = None

    def __iter__(self) -> Iterator[str]:
        self._refuse("the whole environment")

    def __len__(self) -> int:  # noqa: PLE0303  it returns nothing at all
        self._refuse("the whole environment")
