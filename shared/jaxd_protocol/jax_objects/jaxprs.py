"""Traced programs: a jaxpr as numbered equations, without where they were written.

The text of a jaxpr is no substitute: it leaves parameters out and shows addresses of functions.
"""

from __future__ import annotations

from typing import Any

_CONTEXT = (
    "compute_type",
    "threefry_partitionable",
    "xla_metadata",
    "cur_abstract_mesh",
    "cur_layout_mode",
    "remove_size_one_mesh_axis",
)


def closed_jaxpr_parts(closed: Any) -> dict[str, Any]:
    """The program and its constants."""
    return {"jaxpr": closed.jaxpr, "consts": tuple(closed.consts)}


def jaxpr_parts(jaxpr: Any) -> dict[str, Any]:
    """The equations of a program; each variable has the number of its first appearance."""
    numbering = _Numbering()
    parts: dict[str, Any] = {
        "constvars": numbering.all(jaxpr.constvars),
        "invars": numbering.all(jaxpr.invars),
    }
    for i, eqn in enumerate(jaxpr.eqns):
        parts[f"primitive {i}"] = eqn.primitive
        parts[f"inputs {i}"] = numbering.all(eqn.invars)
        parts[f"outputs {i}"] = numbering.all(eqn.outvars)
        parts[f"params {i}"] = dict(eqn.params)
        parts[f"context {i}"] = tuple(getattr(eqn.ctx, name, None) for name in _CONTEXT)
    parts["outvars"] = numbering.all(jaxpr.outvars)
    parts["effects"] = tuple(sorted(str(effect) for effect in jaxpr.effects))
    parts |= {f"type {i}": aval for i, aval in enumerate(numbering.types)}
    parts |= {f"literal {i}": value for i, value in enumerate(numbering.literals)}
    # Where constants travel inside the program (jax 0.11), they are part of it.
    if getattr(jaxpr, "consts", None):
        parts["consts"] = tuple(jaxpr.consts)
    return parts


class _Numbering:
    """Numbers for variables, in order of appearance; literals count down from -1."""

    def __init__(self) -> None:
        self.types: list[Any] = []
        self.literals: list[Any] = []
        self._numbers: dict[int, int] = {}

    def all(self, atoms: Any) -> tuple[int, ...]:
        return tuple(self._number(atom) for atom in atoms)

    def _number(self, atom: Any) -> int:
        if hasattr(atom, "val"):
            self.literals.append((atom.val, atom.aval))
            return -len(self.literals)
        number = self._numbers.get(id(atom))
        if number is None:
            number = self._numbers[id(atom)] = len(self.types)
            self.types.append(atom.aval)
        return number
