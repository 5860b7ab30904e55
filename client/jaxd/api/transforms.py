"""Transformations and stages: `f.grad().vmap()`, `f.lower(x)`, with and without jax."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

from jaxd.interop.jax_runtime import map_leaves
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs, infer_static_args

if TYPE_CHECKING:
    import jax

    from jaxd_protocol.jit.transforms import Transformation

P = ParamSpec("P")
R = TypeVar("R")
Other = TypeVar("Other")
WithValue = TypeVar("WithValue")
Mapped = TypeVar("Mapped")


def hide_frames(error: BaseException) -> None:
    """Leaves the user's own frames in the traceback of an exception; see `hide_own_frames`."""
    from jaxd.results.exceptions import hide_own_frames  # most calls raise nothing

    hide_own_frames(error)


def frames_hidden(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose exceptions have the user's own frames."""

    @functools.wraps(function)
    def hidden(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise

    return hidden


class TransformMethods(Generic[Other, WithValue, Mapped]):
    """The transformations and stages of persistent functions and methods.

    `jvp` and `vjp` are called as those of jax. Each other transformation is another function or
    method, which the server traces, compiles and keeps as one of its own; to ask twice gives the
    same one. Options are those of jax, and so are the errors, which a call raises, because it is
    the server that has jax. Where jax returns `float0`, the derivative of what has none, the result
    has None. Nothing is donated.
    """

    __slots__ = ()

    _transformed: Callable[..., Any]
    """The same behind one more transformation, of this name and with these options."""

    _staging: Callable[..., Any]
    """What makes its stages."""

    _whole: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    """The positional arguments, with the instance that it is bound to."""

    _value_at: Callable[..., Any]
    """The value at primals, with arguments by name; nothing is donated."""

    def grad(
        self,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        holomorphic: bool = False,
        allow_int: bool = False,
    ) -> Other:
        """The gradient, as `jax.grad`."""
        made: Other = self._transformed(
            "grad", argnums=argnums, has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int
        )
        return made

    def value_and_grad(
        self,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        holomorphic: bool = False,
        allow_int: bool = False,
    ) -> WithValue:
        """Value and gradient, as `jax.value_and_grad`."""
        made: WithValue = self._transformed(
            "value_and_grad",
            argnums=argnums,
            has_aux=has_aux,
            holomorphic=holomorphic,
            allow_int=allow_int,
        )
        return made

    def jacfwd(
        self,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        holomorphic: bool = False,
    ) -> Other:
        """The Jacobian, column by column, as `jax.jacfwd`."""
        made: Other = self._transformed(
            "jacfwd", argnums=argnums, has_aux=has_aux, holomorphic=holomorphic
        )
        return made

    def jacrev(
        self,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        holomorphic: bool = False,
        allow_int: bool = False,
    ) -> Other:
        """The Jacobian, row by row, as `jax.jacrev`."""
        made: Other = self._transformed(
            "jacrev", argnums=argnums, has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int
        )
        return made

    def hessian(
        self,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        holomorphic: bool = False,
    ) -> Other:
        """The Hessian, as `jax.hessian`."""
        made: Other = self._transformed(
            "hessian", argnums=argnums, has_aux=has_aux, holomorphic=holomorphic
        )
        return made

    def vmap(
        self,
        in_axes: Any = 0,
        out_axes: Any = 0,
        axis_name: str | None = None,
        axis_size: int | None = None,
    ) -> Mapped:
        """The function mapped over axes of its arguments, as `jax.vmap`.

        Static arguments have no axis: an `in_axes` for all arguments passes them by, a tuple has
        None for them, and given by name they are not mapped.
        """
        made: Mapped = self._transformed(
            "vmap", in_axes=in_axes, out_axes=out_axes, axis_name=axis_name, axis_size=axis_size
        )
        return made

    @frames_hidden
    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Value and tangent at these primals, as `jax.jvp(f, primals, tangents)`.

        Args:
            primals: the positional arguments, as a tuple or a list.
            tangents: one of the same structure for each; None keeps an argument constant.
            has_aux: whether the function returns a value and auxiliary data.
            **kwargs: arguments by name, which are not differentiated; static ones are given so.

        Returns:
            Value, tangent and, with `has_aux`, the auxiliary data.

        Raises:
            BaseException, JaxdError: as a call.
        """
        jvp: Any = self._transformed("jvp", has_aux=has_aux)
        found: tuple[Any, ...] = jvp(primals, tangents, **kwargs)
        return found

    @frames_hidden
    def vjp(self, *primals: Any, has_aux: bool = False, **kwargs: Any) -> tuple[Any, ...]:
        """Value at these primals, and the function that pulls cotangents back, as `jax.vjp`.

        That function takes a cotangent for the value and returns a tuple with one for each primal.
        Each call of it computes the value again, as `jax.checkpoint` does: nothing is kept but the
        primals, and of numpy arrays copies. In a process with jax it is a tree of these.

        Args:
            *primals: the positional arguments.
            has_aux: whether the function returns a value and auxiliary data.
            **kwargs: arguments by name, which are not differentiated; static ones are given so.

        Returns:
            Value, pullback and, with `has_aux`, the auxiliary data.

        Raises:
            BaseException, JaxdError: as a call.
        """
        kept = map_leaves(_own_copy, primals)
        found: Any = self._value_at(kept, kwargs)
        value, *aux = found if has_aux else (found,)
        pull_back: Any = self._transformed("vjp", has_aux=has_aux)
        from jaxd.interop.jax_runtime import loaded_jax

        jax = loaded_jax()
        bind: Any = functools.partial if jax is None else jax.tree_util.Partial
        return (value, bind(pull_back, kept, **kwargs), *aux)

    # stages -------------------------------------------------------------------------------------

    @frames_hidden
    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """The program for such arguments, as that of `jax.jit(f).lower(...)`.

        Specs stand for arrays as in `warm`. In a process that has imported jax it is jax's own:
        traced and lowered here, compiled and called on the server. In one without it has what can
        be had without jax's objects; see `jaxd.api.stages`.

        Raises:
            BaseException, JaxdError: as `warm`.
        """
        return self._staging().lower(self._whole(args), kwargs)  # type: ignore[no-any-return]

    @frames_hidden
    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """The function traced in this process for such arguments, as by `jax.jit(f).trace(...)`.

        Raises:
            NoServer: when this process has no jax.
            BaseException, JaxdError: as `warm`.
        """
        return self._staging().trace(self._whole(args), kwargs)  # type: ignore[no-any-return]

    @frames_hidden
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns, with a spec for each array, as `jax.jit(f).eval_shape(...)`.

        Raises:
            BaseException, JaxdError: as `warm`.
        """
        return self._staging().eval_shape(self._whole(args), kwargs)

    @frames_hidden
    def jaxpr(self, *args: Any, **kwargs: Any) -> str:
        """The text of what jax traces for such arguments, as `jax.make_jaxpr` prints it.

        Raises:
            BaseException, JaxdError: as `warm`.
        """
        return str(self._staging().jaxpr(self._whole(args), kwargs))


def _own_copy(leaf: Any) -> Any:
    """A copy of a numpy array, which its owner may overwrite; anything else as it is."""
    numpy = sys.modules.get("numpy")
    return leaf.copy() if numpy is not None and type(leaf) is numpy.ndarray else leaf


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
        given |= {"static": _named_statics(own, names[1:] if on_instance else names)}
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


def arguments_at(
    function: Callable[..., Any],
    options: Options,
    primals: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    on_instance: bool = False,
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call at such primals: static ones are given by name, wherever they stand.

    Args:
        function: what is called.
        options: how it is compiled.
        primals: the positional arguments, without static ones and the instance.
        kwargs: those by name.
        on_instance: whether the function is the method that it is on an instance.
    """
    from jaxd_protocol.messages.function_manifest import parameter_names

    statics, names = infer_static_args(function, options), parameter_names(function)
    if on_instance:
        statics, names = _of_method(statics, names), names[1:]
    args, named = list(primals), dict(kwargs)
    for number, name in _named_statics(statics, names):
        if name in named and number <= len(args):
            args.insert(number, named.pop(name))
    return args, named


def _named_statics(statics: StaticArgs, names: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """Position and name of each argument that is static and can be given by position."""
    numbers = [number for number in sorted(statics.at(len(names))) if number < len(names)]
    return tuple((number, names[number]) for number in numbers)


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
