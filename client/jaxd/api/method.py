"""`PersistentMethod`: a persistent function bound to an instance."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    ParamSpec,
    SupportsIndex,
    TypeVar,
    overload,
)

from jaxd.api.transforms import TransformMethods
from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.fingerprint.function_wrapper import BoundWrapper

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.api.recording import CallProfile
    from jaxd.api.why import Why
    from jaxd.dispatch.warm import Warmed


P = ParamSpec("P")
R = TypeVar("R")


class PersistentMethod(
    BoundWrapper,
    TransformMethods[
        "PersistentMethod[P, Any]", "PersistentMethod[P, tuple[R, Any]]", "PersistentMethod[P, R]"
    ],
    Generic[P, R],
):
    """What is found under the name of a persistent function on an instance.

    Or, of a class method, on a class.

    The instance is the first argument of its calls, which are those of the function and share what
    is built for it. Its transformations are those of the method, as those of jax: the instance
    counts among neither positions nor axes.
    """

    __slots__ = ()

    def _unbound(self) -> Any:
        """The function, as found on the class: a `PersistentFunction`."""
        return self.func

    @property
    def __wrapped__(self) -> MethodType:
        """The method that runs here, without a server."""
        return MethodType(self._unbound().__wrapped__, self.args[0])

    def __getattr__(self, name: str) -> Any:
        """As with any method: what is known of the function."""
        if name == "__signature__":  # without the instance
            import inspect

            return inspect.signature(self.__wrapped__)
        return getattr(self.func, name)

    def __repr__(self) -> str:
        return f"<persistent {self.__wrapped__!r}>"

    def on(
        self, device: SupportsIndex | None = None, *, member: str | None = None
    ) -> PersistentMethod[P, R]:
        """As `PersistentFunction.on`."""
        return PersistentMethod(self._unbound().on(device, member=member), self.args[0])

    if TYPE_CHECKING:  # the call itself is that of `partial`, in C

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Runs the method on the server and returns its result."""

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As `PersistentFunction.remote`."""
        return self._unbound().remote(*self.args, *args, **kwargs)  # type: ignore[no-any-return]

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """As `PersistentFunction.submit`."""
        return self._unbound().submit(*self.args, *args, **kwargs)  # type: ignore[no-any-return]

    async def call_async(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As `PersistentFunction.call_async`."""
        return await self._unbound().call_async(*self.args, *args, **kwargs)  # type: ignore[no-any-return]

    def map(self, *iterables: Iterable[Any]) -> Iterator[R]:
        """As `PersistentFunction.map`, each call on this instance."""
        if not iterables:
            return iter(())
        return self._unbound().map(itertools.repeat(self.args[0]), *iterables)  # type: ignore[no-any-return]

    def why(self, *args: P.args, **kwargs: P.kwargs) -> Why:
        """As `PersistentFunction.why`."""
        from jaxd.api.why import is_valid_call

        given = self.args if is_valid_call(self.__wrapped__, args, kwargs) else ()
        return self._unbound().why(*given, *args, **kwargs)  # type: ignore[no-any-return]

    def profile(self, *args: P.args, **kwargs: P.kwargs) -> CallProfile:
        """As `PersistentFunction.profile`."""
        return self._unbound().profile(*self.args, *args, **kwargs)  # type: ignore[no-any-return]

    @overload
    def warm(
        self, *args: Any, over: Mapping[str, Iterable[int]], **kwargs: Any
    ) -> list[Warmed]: ...
    @overload
    def warm(self, *args: Any, **kwargs: Any) -> Warmed: ...
    def warm(self, *args: Any, **kwargs: Any) -> Warmed | list[Warmed]:
        """As `PersistentFunction.warm`."""
        return self._unbound().warm(*self.args, *args, **kwargs)  # type: ignore[no-any-return]

    def _whole(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*self.args, *args)

    def _staging(self) -> Any:
        return self._unbound()._staging(1)  # noqa: SLF001  a method is what it forwards to

    def _value_at(self, primals: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._unbound()._value_at(primals, kwargs, self.args[0])  # noqa: SLF001  as above

    def _transformed(self, name: str, **given: Any) -> PersistentMethod[..., Any]:
        """The same behind one more transformation, of this name and with these options."""
        derived = self._unbound()._transformed(name, on_instance=True, **given)  # noqa: SLF001
        return PersistentMethod(derived, self.args[0])


_CLASS_IS_LOST: Final = sys.version_info >= (3, 13)


def check_class_known(function: Any, args: tuple[Any, ...]) -> None:
    """Returns when a method of a persistent function has its class, if it is a class method.

    Args:
        function: a persistent function.
        args: the arguments of that method.

    Raises:
        ArgumentError: when the class is missing.
    """
    if not _CLASS_IS_LOST:
        return
    if not (args and isinstance(args[0], type)) and _is_class_method(function):
        name = function.__qualname__
        raise ArgumentError(
            f"{name} is a class method, and from Python 3.13 on nothing but a call of it says on "
            "which class it was found. Put what you ask for into a static method that takes what "
            f"it needs, or bind it yourself: vars({name.rpartition('.')[0]})["
            f"{name.rpartition('.')[2]!r}].__func__.__get__(cls)"
        )


def _is_class_method(function: Any) -> bool:
    """Whether its class has it as one; False for classes that are local to a function."""
    *path, name = str(getattr(function, "__qualname__", "?")).split(".")
    found: Any = sys.modules.get(str(getattr(function, "__module__", "?")))
    for part in (*path, name):
        found = getattr(found, "__dict__", {}).get(part)
    return isinstance(found, classmethod) and found.__func__ is function
