"""Transformations by name: `f.grad().vmap()`, for clients with and without jax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from jaxd.class_methods import LOSES_CLASS, refuse_lost_class
from jaxd.inspected import Inspected

if TYPE_CHECKING:
    from jaxd.caller import Caller
    from jaxd.persistent_function import PersistentFunction
    from jaxd_protocol.calls import Options

__all__ = ["ByName", "Transformable"]

P = ParamSpec("P")
T = TypeVar("T")

_MAX_DERIVED: Final = 64


class ByName(Generic[T]):
    """What a persistent function, or one on an instance, can be transformed by, without jax.

    Each method returns another one, which the server traces, compiles and keeps as a function of
    its own; to ask twice gives the same one. Options are those of jax, and so are the errors, which
    a call raises, because it is the server that has jax. Where jax returns `float0`, the
    derivative of what has none, the result has None. Nothing is donated.
    """

    __slots__ = ()

    transformed: Callable[..., T]
    """The same behind one more transformation, of this name and with these options."""

    def grad(
        self,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        holomorphic: bool = False,
        allow_int: bool = False,
    ) -> T:
        """The gradient, as `jax.grad`."""
        return self.transformed(
            "grad",
            argnums=argnums,
            has_aux=has_aux,
            holomorphic=holomorphic,
            allow_int=allow_int,
        )

    def value_and_grad(
        self,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        holomorphic: bool = False,
        allow_int: bool = False,
    ) -> T:
        """Value and gradient, as `jax.value_and_grad`."""
        return self.transformed(
            "value_and_grad",
            argnums=argnums,
            has_aux=has_aux,
            holomorphic=holomorphic,
            allow_int=allow_int,
        )

    def jacfwd(
        self,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        holomorphic: bool = False,
    ) -> T:
        """The Jacobian, column by column, as `jax.jacfwd`."""
        return self.transformed("jacfwd", argnums=argnums, has_aux=has_aux, holomorphic=holomorphic)

    def jacrev(
        self,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        holomorphic: bool = False,
        allow_int: bool = False,
    ) -> T:
        """The Jacobian, row by row, as `jax.jacrev`."""
        return self.transformed(
            "jacrev",
            argnums=argnums,
            has_aux=has_aux,
            holomorphic=holomorphic,
            allow_int=allow_int,
        )

    def hessian(
        self,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        holomorphic: bool = False,
    ) -> T:
        """The Hessian, as `jax.hessian`."""
        return self.transformed(
            "hessian", argnums=argnums, has_aux=has_aux, holomorphic=holomorphic
        )

    def vmap(
        self,
        in_axes: Any = 0,
        out_axes: Any = 0,
        axis_name: str | None = None,
        axis_size: int | None = None,
    ) -> T:
        """The function mapped over axes of its arguments, as `jax.vmap`.

        Static arguments have no axis: an `in_axes` for all arguments passes them by, a tuple has
        None for them, and given by name they are not mapped.
        """
        return self.transformed(
            "vmap", in_axes=in_axes, out_axes=out_axes, axis_name=axis_name, axis_size=axis_size
        )

    def jvp(self, has_aux: bool = False) -> T:
        """Forward-mode: called as `f.jvp()(primals, tangents, **kwargs)`.

        `primals` is a tuple of positional arguments and `tangents` one of the same structure; None
        for an argument says that it stays what it is. Keyword arguments are not differentiated;
        static ones are given so. Returns value and tangent, as `jax.jvp`, and auxiliary data.
        """
        return self.transformed("jvp", has_aux=has_aux)

    def vjp(self, has_aux: bool = False) -> T:
        """Reverse-mode: called as `f.vjp()(primals, cotangents, **kwargs)`.

        `primals` is a tuple of positional arguments and `cotangents` has the structure of the
        result. Keyword arguments are not differentiated; static ones are given so. Returns the
        value and a tuple of one cotangent for each primal, as `jax.vjp` and the function that it
        returns together, and auxiliary data.
        """
        return self.transformed("vjp", has_aux=has_aux)


class Transformable(ByName["PersistentFunction[..., Any]"], Inspected[P]):
    """The part of a `PersistentFunction` that makes others of it."""

    _derived: dict[bytes, PersistentFunction[..., Any]]

    def _traced(
        self,
        caller: Caller,
        config: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call with tracers among its arguments, as part of the program that jax traces."""
        from jaxd.traced import call_traced

        return call_traced(
            caller,
            self._identities.spec(config),
            self._manner,
            args,
            kwargs,
            lambda call: self._settled(caller, call, config),
        )

    def transformed(
        self, name: str, *, on_instance: bool = False, **given: Any
    ) -> PersistentFunction[..., Any]:
        """The function behind one more transformation.

        Args:
            name: the transformation.
            on_instance: whether it is that of the method which the function is on an instance;
                the instance is the first argument all the same.
            **given: options of the transformation.
        """
        from jaxd.deriving import derived

        if LOSES_CLASS and not on_instance:
            refuse_lost_class(self, ())
        made = derived(self.__wrapped__, self._options, name, given, on_instance=on_instance)
        return self._kin(made.function, made.options, made.base)

    def _kin(
        self, function: Callable[..., Any], options: Options, base: Callable[..., Any]
    ) -> PersistentFunction[..., Any]:
        """One that is called as this one is; the same each time that it is asked for."""
        key = options.to_bytes()
        found = self._derived.get(key)
        if found is None:
            from jaxd.persistent_function import PersistentFunction

            if len(self._derived) >= _MAX_DERIVED:
                self._derived.clear()
            how = self._find_caller, self._manner, *self._identities.ways
            made: PersistentFunction[..., Any] = PersistentFunction(
                function, options, *how, base=base
            )
            found = self._derived.setdefault(key, made)
        return found
