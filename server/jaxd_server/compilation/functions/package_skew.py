"""Packages that a client's function needs, held against those that are installed here."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from jaxd_protocol.errors import MissingPackage, PackageMismatch
from jaxd_protocol.explain.key_differences import dependency_difference
from jaxd_protocol.packages.distributions import (
    Package,
    import_root,
    package_of,
    package_on_disk,
)
from jaxd_server.runtime.events import Emit
from jaxd_server.runtime.imported_packages import Change

Kind = Literal["missing", "version", "files", "dependency"]

_INSTALL_THE_SAME = "Install the same on both sides, or leave out strict=True."
_FREE_THE_WORKER = (
    "Release the arrays (`jaxd values` lists them), run `jaxd restart --force`, or leave out "
    "strict=True."
)


class Difference(NamedTuple):
    """One package that is not the same on both sides.

    Attributes:
        function: the name of the function that uses it.
        package: as pip calls it.
        kind: `missing` on the server, another `version`, or other `files` under the same version;
            or a `dependency` that has changed where the server runs.
        text: what that means, and what to do.
    """

    function: str
    package: str
    kind: Kind
    text: str


def compare(function: str, packages: Mapping[str, Package]) -> tuple[Difference, ...]:
    """How the server's packages differ from those that a client's function was written with.

    Args:
        function: its name.
        packages: the client's, by import name.
    """
    found: dict[str, Difference] = {}
    for module, theirs in packages.items():
        difference = _difference(function, module, theirs, package_of(module))
        if difference is not None and not _has_come_since(module, theirs):
            found.setdefault(difference.package, difference)
    return tuple(found.values())


def _has_come_since(module: str, theirs: Package) -> bool:
    """Whether it was installed a moment ago and is imported here when a function needs it first.

    What is installed is looked at each second: in between it may be what it was in the middle of an
    installation.
    """
    is_imported = import_root(module) in sys.modules
    return not is_imported and package_on_disk(module) == theirs


def refuse_missing(differences: Sequence[Difference]) -> None:
    """Returns when every package is installed here.

    Raises:
        MissingPackage: when one is not; says how to install it.
    """
    for one in differences:
        if one.kind == "missing":
            raise MissingPackage(one.text)


def dependency_changes(function: str, changes: Sequence[Change]) -> tuple[Difference, ...]:
    """The packages that a function is still run with although they have changed on disk.

    Args:
        function: its name.
        changes: what has become of them.
    """
    return tuple(
        Difference(
            function,
            change.old.name,
            "dependency",
            f"function {function!r}: {dependency_difference(*change).text} where the server runs; "
            "its worker goes on with the old one because it holds arrays of clients, so results "
            "come from that. It is restarted when there are none (`jaxd values` lists them), or "
            "by `jaxd restart --force`.",
        )
        for change in changes
    )


def refuse_or_warn(differences: Sequence[Difference], emit: Emit, *, strict: bool) -> None:
    """Tells the caller about differences, if there are any.

    Args:
        differences: what `compare` or `dependency_changes` found.
        emit: where warnings go: an event `warning` for each.
        strict: whether any difference is an error.

    Raises:
        PackageMismatch: with `strict`, when there is one.
    """
    if strict and differences:
        is_stuck = any(one.kind == "dependency" for one in differences)
        advice = _FREE_THE_WORKER if is_stuck else _INSTALL_THE_SAME
        raise PackageMismatch(" ".join([*(one.text for one in differences), advice]))
    for one in differences:
        emit("warning", {"function": one.function, "package": one.package, "text": one.text})


def _difference(
    function: str, module: str, theirs: Package, ours: Package | None
) -> Difference | None:
    if ours is None:
        return Difference(function, theirs.name, "missing", _missing(function, module, theirs))
    if ours.version != theirs.version:
        text = (
            f"function {function!r} uses {theirs.name} {theirs.version} here and {ours.version} "
            "on the server: results come from the server's."
        )
        return Difference(function, theirs.name, "version", text)
    if ours.digest != theirs.digest:
        text = (
            f"function {function!r} uses {theirs.name} {theirs.version}, which has other files "
            "on the server: results come from the server's."
        )
        return Difference(function, theirs.name, "files", text)
    return None


def _missing(function: str, module: str, theirs: Package) -> str:
    if not theirs.version:
        return (
            f"function {function!r} needs the module {module}, which is not installed on the "
            "server. Install it where the server runs."
        )
    names, versions = theirs.name.split(", "), theirs.version.split(", ")
    wanted = " ".join(f"{n}=={v}" for n, v in zip(names, versions, strict=True))
    return (
        f"function {function!r} needs {theirs.name} (client: {theirs.version}), which is not "
        f"installed on the server. Run: pip install {wanted} where the server runs."
    )
