"""Transformation methods: `f.grad().vmap()`, with and without jax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs, infer_static_args

if TYPE_CHECKING:
    from jaxd_protocol.jit.transforms import Transformation

T = TypeVar("T")


class TransformMethods(Generic[T]):
    """The transformation methods of persistent functions and methods.

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
            "grad", argnums=argnums, has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int
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
            "jacrev", argnums=argnums, has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int
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
        for an argument keeps it constant. Keyword arguments are not differentiated;
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


class DerivedFunction(NamedTuple):
    """A transformed function.

    Attributes:
        function: what stands for it inside of other functions, and where there is no server.
        options: how it is compiled, and what it is transformed by.
        base: what it is made of; its fingerprint is that of this.
    """

    function: Callable[..., Any]
    options: Options
    base: Callable[..., Any]


def derive(
    function: Callable[..., Any],
    options: Options,
    name: str,
    given: dict[str, Any],
    *,
    on_instance: bool = False,
) -> DerivedFunction:
    """The function behind one more transformation.

    Args:
        function: a function, transformed or not.
        options: how that one is compiled.
        name: the transformation.
        given: its options.
        on_instance: whether what is transformed is the method that the function is on an instance.

    Raises:
        ConfigurationError: when an option has no place in a key.
    """
    from jaxd_protocol.jit.transforms import apply_transformations, untransformed
    from jaxd_protocol.jit.transforms.transform_literals import with_bound_method
    from jaxd_protocol.messages.function_manifest import parameter_names

    statics = infer_static_args(function, options)
    names = parameter_names(function)
    first = statics.positions & {0} if on_instance else frozenset()
    own = _of_method(statics, names) if on_instance else statics
    if name == "vmap":
        given |= {
            "static_argnums": tuple(sorted(own.positions)),
            "static_argnames": tuple(sorted(own.names)),
        }
    if name in ("jvp", "vjp"):  # whose positional arguments are tuples of those of the function
        names = names[1:] if on_instance else names
        numbers = [number for number in sorted(own.positions) if number < len(names)]
        given |= {"static": tuple((number, names[number]) for number in numbers)}
        statics = StaticArgs(first, statics.names)
    if isinstance(given.get("argnums"), list):
        given |= {"argnums": tuple(given["argnums"])}  # which is the same to jax
    before, one = options.transformations, _spell_transform(name, given)
    transformations = with_bound_method(before, one) if on_instance else (*before, one)
    base = untransformed(function)
    return DerivedFunction(
        apply_transformations(base, transformations),
        options._replace(
            static_argnums=tuple(sorted(statics.positions)) if statics else None,
            static_argnames=tuple(sorted(statics.names)) if statics else None,
            donate_argnums=None,
            donate_argnames=None,
            transformations=transformations,
        ),
        base,
    )


def _of_method(statics: StaticArgs, names: tuple[str, ...]) -> StaticArgs:
    """Which arguments are static when the first one is the instance."""
    positions = frozenset(n - 1 if n > 0 else n for n in statics.positions if n != 0)
    return statics._replace(positions=positions, names=statics.names - set(names[:1]))


def _spell_transform(name: str, given: dict[str, Any]) -> Transformation:
    from jaxd_protocol.jit.transforms import NotLiteral, encode_transformation

    try:
        return encode_transformation(name, given)
    except NotLiteral as error:
        raise ConfigurationError(
            f"an option of {name} cannot be part of a key: {error}. Use numbers, text, and "
            f"tuples, lists and dicts of them; or transform the function itself: "
            f"persistent_call(jax.{name}(f, …))."
        ) from error
