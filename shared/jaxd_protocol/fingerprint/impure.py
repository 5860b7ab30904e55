"""What a function may read while it is traced although no key can hold it.

Such a value is built into the program when it is compiled, and stays as it was then.
"""

from __future__ import annotations

from typing import Final

_CLOCKS: Final = frozenset(
    [
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "process_time",
        "localtime",
        "gmtime",
        "ctime",
        "strftime",
    ]
)
_NUMPY_RANDOM_OBJECTS: Final = frozenset(
    [
        "Generator",
        "RandomState",
        "SeedSequence",
        "default_rng",
        "PCG64",
        "PCG64DXSM",
        "MT19937",
        "Philox",
        "SFC64",
        "BitGenerator",
    ]
)
_NUMPY_FILES: Final = frozenset(["load", "fromfile", "loadtxt", "genfromtxt", "memmap"])
_RANDOM_OBJECTS: Final = frozenset({"Random", "SystemRandom", "seed"})
_OS_FILES: Final = frozenset(
    [
        "listdir",
        "scandir",
        "stat",
        "walk",
        "open",
        "read",
        "getcwd",
        "access",
        "readlink",
        "urandom",
        "getpid",
    ]
)


def impurity(module: str, name: str) -> str | None:
    """What an installed function reads besides its arguments, None for most.

    Args:
        module: where the function is at home.
        name: its name there; empty for the module as a whole.
    """
    if module == "time" and name in _CLOCKS:
        return f"the clock (time.{name})"
    if module == "datetime" and name.rpartition(".")[2] in ("now", "today", "utcnow"):
        return f"the clock ({name})"
    if _is_numpy_state(module, name):
        return f"numpy's global random state (numpy.random.{name})"
    if module == "random" and name and name not in _RANDOM_OBJECTS:
        return f"Python's global random state (random.{name})"
    return _files(module, name)


def _is_numpy_state(module: str, name: str) -> bool:
    is_function = name[:1].islower() and name not in _NUMPY_RANDOM_OBJECTS
    return is_function and (module + ".").startswith("numpy.random.")


def _files(module: str, name: str) -> str | None:
    if (module in ("builtins", "io", "_io") and name == "open") or (
        module in ("os", "posix", "nt") and name in _OS_FILES
    ):
        return f"the file system ({name})"
    if module.startswith("numpy") and name in _NUMPY_FILES:
        return f"the file system (numpy.{name})"
    if module in ("posixpath", "genericpath", "glob") and name in ("exists", "isfile", "glob"):
        return f"the file system ({name})"
    return None
