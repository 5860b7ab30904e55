"""`PersistentMethod`: a persistent function bound to an instance."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex

from jaxd.api.transforms import TransformMethods
from jaxd_protocol.fingerprint.function_wrapper import BoundWrapper

if TYPE_CHECKING:
    from concurrent.futures import Future

    import jax

    from jaxd.api.staging import Staging
    from jaxd.api.why import Why
    from jaxd.dispatch.warm import Warmed


class Unbound(Protocol):
    """The function it forwards to: a `PersistentFunction`."""

    __wrapped__: Callable[..., Any]
    call_async: Callable[..., Awaitable[Any]]
    map: Callable[..., Iterator[Any]]
    on: Callable[..., Callable[..., Any]]
    remote: Callable[..., Any]
    submit: Callable[..., Future[Any]]
    transformed: Callable[..., Callable[..., Any]]
    warm: Callable[..., Warmed]
    why: Callable[..., Why]
    _staging: Callable[[int], Staging]


class PersistentMethod(BoundWrapper, TransformMethods["PersistentMethod"]):
    """What is found under the name of a persistent function on an instance.

    Or, of a class method, on a class.

    The instance is the first argument of its calls, which are those of the function and share what
    is built for it. Its transformations are those of the method, as those of jax: the instance
    counts among neither positions nor axes.
    """

    __slots__ = ()

    def unbound(self) -> Unbound:
        """The function, as found on the class."""
        return self.func  # type: ignore[return-value]

    @property
    def __wrapped__(self) -> MethodType:
        """The method that runs here, without a server."""
        return MethodType(self.unbound().__wrapped__, self.args[0])

    def __getattr__(self, name: str) -> Any:
        """As with any method: what is known of the function."""
        return getattr(self.func, name)

    def __repr__(self) -> str:
        return f"<persistent {self.__wrapped__!r}>"

    def on(self, device: SupportsIndex | None) -> PersistentMethod:
        """As `PersistentFunction.on`."""
        return PersistentMethod(self.unbound().on(device), self.args[0])

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.remote`."""
        return self.unbound().remote(*self.args, *args, **kwargs)

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """As `PersistentFunction.submit`."""
        return self.unbound().submit(*self.args, *args, **kwargs)

    async def call_async(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.call_async`."""
        return await self.unbound().call_async(*self.args, *args, **kwargs)

    def map(self, *iterables: Iterable[Any]) -> Iterator[Any]:
        """As `PersistentFunction.map`, each call on this instance."""
        if not iterables:
            return iter(())
        return self.unbound().map(itertools.repeat(self.args[0]), *iterables)

    def why(self, *args: Any, **kwargs: Any) -> Why:
        """As `PersistentFunction.why`."""
        from jaxd.api.why import is_valid_call

        given = self.args if is_valid_call(self.__wrapped__, args, kwargs) else ()
        return self.unbound().why(*given, *args, **kwargs)

    def warm(self, *args: Any, **kwargs: Any) -> Warmed:
        """As `PersistentFunction.warm`."""
        return self.unbound().warm(*self.args, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """As `PersistentFunction.lower`."""
        return self._staging().lower((*self.args, *args), kwargs)  # type: ignore[no-any-return]

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """As `PersistentFunction.trace`."""
        return self._staging().trace((*self.args, *args), kwargs)  # type: ignore[no-any-return]

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As `PersistentFunction.eval_shape`."""
        return self._staging().eval_shape((*self.args, *args), kwargs)

    def jaxpr(self, *args: Any, **kwargs: Any) -> str:
        """As `PersistentFunction.jaxpr`."""
        return self._staging().jaxpr((*self.args, *args), kwargs)

    def _staging(self) -> Staging:
        return self.unbound()._staging(1)  # noqa: SLF001  a method is what it forwards to

    def transformed(self, name: str, **given: Any) -> PersistentMethod:
        """The same behind one more transformation, of this name and with these options."""
        derived = self.unbound().transformed(name, on_instance=True, **given)
        return PersistentMethod(derived, self.args[0])
