"""Access paths from installed modules: by name, unless something is patched there."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any, Final, NoReturn

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.archives import members
from jaxd_protocol.fingerprint.canonical import digest
from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.impure import impurity
from jaxd_protocol.fingerprint.model import Steps
from jaxd_protocol.fingerprint.unpatched import (
    is_plain_data,
    refuse_patched_class,
    refuse_patched_function,
)
from jaxd_protocol.fingerprint.values import environment, flags, modules
from jaxd_protocol.fingerprint.walk import Walk, short_repr

_COMPUTED_IMPORTS: Final = frozenset({("importlib", "import_module"), ("sys", "modules")})


def emit_installed(walk: Walk, module: ModuleType, steps: Steps) -> None:
    """Appends a chain from an installed module.

    Its names are in the code, and what is behind them is the same on both sides, unless somebody
    has put it there.
    """
    walk.reach.installed.append(module)
    modules.emit_reference(walk, module.__name__, "")
    check_installed(walk, module, steps)


def _static_attribute(module: ModuleType, name: str) -> Any:
    """What an installed module has; getattr could run its own `__getattr__`.

    On a server it may be one with a client's attributes on top of the server's module.
    """
    content = vars(module)
    if name in content:
        return content[name]
    below = content.get("_jaxd_real")
    return MISSING if below is None else vars(below).get(name, MISSING)


def _of_installed_attribute(walk: Walk, module: ModuleType, name: str, rest: Steps) -> None:
    """Appends something only where the value may be another one on the other side."""
    if environment.emit_from_os(walk, module, name, rest):
        return
    _check_import(walk, module, name, rest)
    value = _static_attribute(module, name)
    if "_jaxd_real" not in vars(module):
        walk.guards.item(vars(module), name, value)
    path = [name, *_leading_attributes(rest)]
    impure = impurity(module.__name__, ".".join(path)) or impurity(
        f"{module.__name__}.{name}", ".".join(path[1:])
    )
    if impure is not None:
        walk.note(impure)
    if value is MISSING:
        return
    if callable(value):
        walk.reach.installed.append(value)
    if flags.is_flags(value) or walk.process_view.carries(module, name, value):
        walk.label = f"global {module.__name__}.{name}"
        walk.tag("carried")
        walk.text(f"{module.__name__}:{name}")
        walk.carry(module.__name__, name, value)
        walk.follow(value, rest)
    elif isinstance(value, type):
        refuse_patched_class(value, walk.is_local, walk.path)
        emit_setting(walk, module.__name__, name, value, rest)
    elif isinstance(value, FunctionType):
        refuse_patched_function(value, walk.path)
    else:
        emit_setting(walk, module.__name__, name, value, rest)


def _check_import(walk: Walk, module: ModuleType, name: str, rest: Steps) -> None:
    if (module.__name__, name) not in _COMPUTED_IMPORTS:
        return
    if rest and rest[0][0] in "ci" and not walk.is_local(str(rest[0][1]).partition(".")[0]):
        return  # an installed module, by a name that can be read
    if name == "import_module" and members.allow_computed_import(walk, rest):
        return
    refuse_computed_import(walk, f"{module.__name__}.{name}")


def refuse_computed_import(walk: Walk, what: str) -> NoReturn:
    """For code that imports a module in a way that neither key nor pickling can follow.

    Raises:
        PackingError: the server would look for the module among its own.
    """
    by_source = (
        "" if what == "sys.modules" else " persistent_call(ship='source') sends whole packages;"
    )
    raise PackingError(
        f"{walk.path()} uses {what} ({walk.where}), so it cannot be seen which module it means. "
        f"Write an import statement, in the function if need be.{by_source} Or install the "
        "package where the server runs and here."
    )


def emit_setting(walk: Walk, module: str, name: str, holder: Any, rest: Steps) -> None:
    """A setting that an installed class or object has, as in `toolbox.Settings.rate`.

    It counts, and the server refuses the function when its own has another value.
    """
    if not rest or rest[0][0] != "a":
        return
    attribute = rest[0][1]
    places = holder.__mro__ if isinstance(holder, type) else (holder,)
    contents = [getattr(place, "__dict__", {}) for place in places]
    value = next((content[attribute] for content in contents if attribute in content), MISSING)
    path = f"{name}.{attribute}"
    home = sys.modules.get(module)
    if value is MISSING or not is_plain_data(value) or home is None:
        return
    if not walk.process_view.carries(home, path, value):
        return
    walk.tag("set")
    walk.text(f"{module}:{path}")
    walk.count(module, path)
    walk.guards.attribute(holder, attribute, value)
    data = repr(value).encode()
    walk.write(digest(data))
    walk.part("installed", f"{module}.{path}", data, short_repr(value))


def _leading_attributes(steps: Steps) -> list[str]:
    return [str(name) for kind, name in steps if kind == "a"]


def check_installed(walk: Walk, module: ModuleType | None, steps: Steps) -> None:
    """Appends something only where an access path may lead to something patched.

    Nothing else: which submodules are loaded differs from process to process.
    """
    while module is not None and steps and steps[0][0] == "a":
        name, rest = steps[0][1], steps[1:]
        value = _static_attribute(module, name)
        if not isinstance(value, ModuleType):
            _of_installed_attribute(walk, module, name, rest)
            return
        if walk.is_local(value.__name__):
            walk.guards.item(vars(module), name, value)
            walk.follow(value, rest)
            return
        walk.guards.item(vars(module), name, value)
        module, steps = value, rest
