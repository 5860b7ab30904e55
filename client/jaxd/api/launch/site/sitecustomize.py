"""Imported by Python at the start of each process that has this folder on its PYTHONPATH.

`jaxd run` and `jaxd env` put it there. With `JAXD=1` what the process jits is served from its
`import jax` on; nothing of jaxd is imported before. A `sitecustomize` of the user's own runs as it
would without this folder.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec

_HERE = os.path.dirname(os.path.abspath(__file__))


class _BeforeJax:
    """Installs the hook when jax is about to be imported; in `sys.meta_path`."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        """None for all but jax, which the others find once the hook is there."""
        if name != "jax" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        _begin()
        found = (
            finder.find_spec(name, path, target)  # type: ignore[arg-type]
            for finder in list(sys.meta_path)
            if hasattr(finder, "find_spec")
        )
        return next(filter(None, found), None)


def _begin() -> None:
    try:
        from jaxd.api.launch.process import install
    except ImportError:
        return  # another interpreter, in whose environment there is no jaxd
    install()


def _run_the_users_own() -> None:
    """Runs the `sitecustomize` that Python would have found without this folder."""
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    module = sys.modules["sitecustomize"] = module_from_spec(spec)
    spec.loader.exec_module(module)


if os.environ.get("JAXD") == "1":
    sys.meta_path.insert(0, _BeforeJax())
    if os.environ.get("JAXD_RUN", "").startswith(f"{os.getpid()}:report"):
        _begin()  # a report is printed also by a program without jax
_run_the_users_own()
