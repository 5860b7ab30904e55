"""What is read besides the arguments."""

from __future__ import annotations

import pytest

from jaxd_protocol.fingerprint.values.modules import impurity


@pytest.mark.parametrize(
    ("module", "name", "what"),
    [
        ("time", "time", "the clock (time.time)"),
        ("time", "perf_counter_ns", "the clock"),
        ("datetime", "datetime.now", "the clock"),
        ("datetime", "date.today", "the clock"),
        ("random", "random", "Python's global random state"),
        ("random", "shuffle", "Python's global random state"),
        ("numpy.random", "rand", "numpy's global random state"),
        ("numpy.random.mtrand", "normal", "numpy's global random state"),
        ("posix", "urandom", "the operating system (urandom)"),
        ("os", "getpid", "the operating system"),
    ],
)
def test_what_no_key_can_hold_is_said(module: str, name: str, what: str) -> None:
    """In the words of a warning."""
    assert (impurity(module, name) or "").startswith(what)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("time", "sleep"),
        ("time", ""),
        ("datetime", "datetime"),
        ("datetime", "timedelta"),
        ("random", "Random"),
        ("random", "seed"),
        ("random", ""),
        ("numpy.random", "default_rng"),
        ("numpy.random", "Generator.normal"),
        ("numpy.random", ""),
        ("jax.random", "normal"),
        ("numpy", "sum"),
        ("os", "environ"),
        ("builtins", "open"),
        ("numpy", "load"),
        ("posix", "listdir"),
        ("posixpath", "join"),
        ("builtins", "len"),
        ("mylib.time", "time"),
    ],
)
def test_what_depends_on_arguments_alone_is_nothing_to_say(module: str, name: str) -> None:
    """Or is recorded while it is traced. Also where only its name is like one of the others."""
    assert impurity(module, name) is None
