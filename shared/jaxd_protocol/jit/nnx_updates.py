"""What a function changes in the flax nnx objects that it is given.

jax flattens such an object, and on the server the function changes a rebuilt copy. `Updating`
returns which variables it changed, so that the caller's own can be updated as well. It reaches the
server inside of the functions that are sent, and uses only flax's public API.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from jaxd_protocol.errors import LostUpdateError
from jaxd_protocol.pickling.names import HERE

SAME_ARGUMENT: Final = "jaxd: the argument"
"""Key of a dict that stands for one of the arguments in a result: `{SAME_ARGUMENT: {0: None}}`."""


def loaded_nnx() -> Any:
    """`flax.nnx`, where it is imported completely, else None."""
    nnx = sys.modules.get("flax.nnx")
    return nnx if nnx is not None and hasattr(nnx, "Variable") and hasattr(nnx, "State") else None


def variables_of(tree: Any) -> list[Any]:
    """The variables of the nnx objects in a tree, in order and with repetitions.

    Those of a `State` beside them are left out: a `State` is passed as values, and a new one is
    returned.
    """
    import jax

    nnx = loaded_nnx()
    if nnx is None:
        return []
    found = []
    for each in jax.tree.leaves(tree, is_leaf=_is_own):
        if isinstance(each, nnx.Pytree | nnx.Variable):
            inside = jax.tree.leaves(each, is_leaf=_is_variable)
            found += [leaf for leaf in inside if isinstance(leaf, nnx.Variable)]
    return found


def without_duplicates(tree: Any) -> Any:
    """The tree with a small stand-in for each further occurrence of a variable.

    `Updating` knows what it stands for; so an array does not travel, and is not donated, twice.
    """
    import numpy as np

    seen: set[int] = set()

    def once(variable: Any) -> Any:
        if id(variable) not in seen:
            seen.add(id(variable))
            return variable
        return variable.replace(np.zeros((), np.bool_))

    return _map_variables(once, tree)


def _map_variables(do: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with what `do` returns for each of these variables."""
    import jax

    nnx = loaded_nnx()

    def inside(leaf: Any) -> Any:
        return do(leaf) if isinstance(leaf, nnx.Variable) else leaf

    def outside(each: Any) -> Any:
        if isinstance(each, nnx.Pytree | nnx.Variable):
            return jax.tree.map(inside, each, is_leaf=_is_variable)
        return each

    return jax.tree.map(outside, tree, is_leaf=_is_own)


def _is_variable(value: Any) -> bool:
    return isinstance(value, loaded_nnx().Variable)


def _is_own(value: Any) -> bool:
    nnx = loaded_nnx()
    return isinstance(value, nnx.Pytree | nnx.Variable | nnx.State)


class Updating:
    """A function that also returns the new values of the variables that it was given.

    Calls return `(changes, result, marks)`: new values by the number of their variable, what the
    function returns, and one None for each argument in it, for which a `SAME_ARGUMENT` stands.

    Args:
        function: what is called.
        same: for each variable the number of the first place where the caller has the same one;
            empty when all are different ones.
        refuses: a change is an error, and calls return only what the function returns.
        all_of_them: return unchanged values as well: the caller donates its own arrays.
    """

    __module__ = HERE  # keys and packed bytes name it

    def __init__(
        self,
        function: Callable[..., Any],
        same: Sequence[int] = (),
        *,
        refuses: bool = False,
        all_of_them: bool = False,
    ) -> None:
        self.function = function
        self.same = tuple(same)
        self.refuses = refuses
        self.all_of_them = all_of_them

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function that has this signature."""
        return self.function

    def __getattr__(self, name: str) -> Any:
        if name in {"__name__", "__qualname__"}:
            return getattr(self.__wrapped__, name, type(self.__wrapped__).__qualname__)
        raise AttributeError(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function.

        Raises:
            LostUpdateError: when it changes the structure of an object, or a value although
                changes are refused.
        """
        args, kwargs = self._tied((args, kwargs))
        before = _VariableSnapshot(args, kwargs)
        result = self.function(*args, **kwargs)
        before.refuse_other_structures(may_replace=not self.same)
        if self.refuses:
            before.refuse_new_values()
            return result
        changes = before.changes(all_of_them=self.all_of_them)
        for number, other in enumerate(self.same):
            if number != other:
                changes.pop(number, None)
        result, marks = _mark_arguments(result, args, kwargs)
        return changes, result, marks

    def _tied(self, tree: Any) -> Any:
        """The arguments, with one variable wherever the caller has one."""
        if not self.same:
            return tree
        found = variables_of(tree)
        others = iter([found[other] for other in self.same])
        return _map_variables(lambda _: next(others), tree)


def refusing_lost_updates(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for a caller that receives only its result.

    Changes of nnx objects in its arguments would be lost, and are an error.
    """
    if isinstance(function, Updating):
        return function

    @functools.wraps(function)  # jax reads the names of its arguments
    def call(*args: Any, **kwargs: Any) -> Any:
        if loaded_nnx() is None:
            return function(*args, **kwargs)
        before = _VariableSnapshot(args, kwargs)
        result = function(*args, **kwargs)
        before.refuse_other_structures()
        before.refuse_new_values()
        return result

    return call


class _VariableSnapshot:
    """The variables among some arguments, as they are before the function runs."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        import jax

        self._all = args, kwargs
        # by name as jax orders them
        self._arguments: dict[Any, Any] = {**dict(enumerate(args)), **dict(sorted(kwargs.items()))}
        self._variables = variables_of(self._all)
        self._before = [jax.tree.leaves(each.get_raw_value()) for each in self._variables]
        self._structures: dict[Any, Any] = {
            name: jax.tree.structure(value)
            for name, value in self._arguments.items()
            if self._variables and variables_of(value)
        }

    def changes(self, *, all_of_them: bool = False) -> dict[int, Any]:
        """The values of the variables that have changed, by number; or those of all variables.

        A variable or module that was replaced counts with the value of its replacement.
        """
        import jax

        now = [each.get_raw_value() for each in variables_of(self._all)]
        return {
            number: value
            for number, value in enumerate(now)
            if all_of_them or not _are_same(jax.tree.leaves(value), self._before[number])
        }

    def refuse_other_structures(self, *, may_replace: bool = True) -> None:
        """Refuses changes of what an object is made of.

        Args:
            may_replace: whether variables may have been replaced by others.

        Raises:
            LostUpdateError: when an object is made of something else than before.
        """
        import jax

        replaced = not (may_replace or _are_same(variables_of(self._all), self._variables))
        for name, structure in self._structures.items():
            other: Any = jax.tree.structure(self._arguments[name])
            if other != structure or replaced:
                raise LostUpdateError(
                    f"the function changes what {self._shown(name)} is made of (an attribute that "
                    "is no array, or which variables there are), and that cannot reach the "
                    "caller's own object. Do it before the call, as with model.train(); what "
                    "comes and goes, return."
                )

    def refuse_new_values(self) -> None:
        """Raises: LostUpdateError: when a variable was changed."""
        owners = [name for name, value in self._arguments.items() for _ in variables_of(value)]
        for number in self.changes():
            raise LostUpdateError(
                f"the function changes variables of flax nnx in {self._shown(owners[number])}, "
                "and that cannot reach the caller's own from there. Pass the modules themselves, "
                "or in lists, tuples and dicts, and call the function instead of submitting it; "
                "or split them, and return the new state (nnx.split, nnx.merge)."
            )

    def _shown(self, name: int | str) -> str:
        which = f"argument {name}" if isinstance(name, int) else f"the argument {name!r}"
        return f"{which} (a {type(self._arguments[name]).__name__})"


def _are_same(found: list[Any], before: list[Any]) -> bool:
    """Whether two lists hold the same objects."""
    return list(map(id, found)) == list(map(id, before))


def _mark_arguments(
    result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, list[None]]:
    """The result with a `SAME_ARGUMENT` for each nnx object that is one of the arguments itself."""
    import jax

    nnx = loaded_nnx()
    own = (nnx.Pytree, nnx.Variable)
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    names = {id(value): name for name, value in given.items() if isinstance(value, own)}
    marks: list[None] = []

    def mark(leaf: Any) -> Any:
        if id(leaf) not in names:
            return leaf
        marks.append(None)
        return {SAME_ARGUMENT: {names[id(leaf)]: None}}

    return jax.tree.map(mark, result, is_leaf=lambda each: id(each) in names), marks
