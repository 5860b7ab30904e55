"""When a call runs in this process: the table of docs/fallback.md."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from jaxd import persistent_call
from jaxd.tracing import fallback
from jaxd_protocol import errors
from jaxd_protocol.messages.calls import FailureOrigin, set_origin

E = errors
FINAL = [
    *(E.NoServer, E.ServerStartFailed, E.AuthenticationFailed, E.NotPermitted, E.VersionMismatch),
    *(E.ProtocolError, E.ConnectionLost, E.WorkerLost, E.CalledBack, E.ServerDraining),
    *(E.WorkerReplaced, E.Quarantined, E.Busy, E.LimitExceeded, E.OutOfMemory, MemoryError),
    *(E.DeadlineExceeded, E.Cancelled, E.MissingPackage, E.PackageMismatch, E.StaleProgramError),
    *(E.PlaceRefused, E.CallbackError, E.ValueDeleted, E.ValuesLost, E.ValuesDied, E.ValuesFull),
    *(E.SkewWarning, E.UnsharedWarning),
]
FOLLOWED = [
    *(("walking", kind) for kind in (E.PackingError, RecursionError, E.ConfigurationError)),
    *(("packing", kind) for kind in (E.ArgumentError, E.PackingError, AttributeError)),
    *(("building", kind) for kind in (E.PackingError, E.ArgumentError, E.ResultError, TypeError)),
    *(("building", kind) for kind in (E.LostUpdateError, E.NotInteractive, E.InternalError)),
    ("building", E.ConfigurationError),
    ("reading", E.ResultError),
]


def failing(error: BaseException, phase: str, raised_in: str = "") -> BaseException:
    """The error of a call that has failed there."""
    set_origin(error, FailureOrigin(phase, raised_in))
    return error


def test_errors_that_are_final() -> None:
    """Wherever they are raised."""
    places = itertools.product(FINAL, sorted(fallback.PHASES))
    assert [at for at in places if fallback.may_follow(failing(at[0]("no"), at[1]))] == []


def test_what_no_option_of_jit_could_list_runs_here() -> None:
    """Where `jax.jit` was written, and before the program has run."""
    phases = [*sorted(fallback.PHASES), "running", ""]
    raised = [failing(E.CallbackError("no"), phase) for phase in phases]
    follows = [error for error in raised if fallback.may_follow(error, is_jit=True)]
    assert [phases[raised.index(error)] for error in follows] == ["building"]
    assert not fallback.may_follow(failing(E.Busy("no"), "building"), is_jit=True)


def test_errors_that_are_followed_by_a_run_here() -> None:
    """But not when the same is raised by a program that runs, or by a call with effects."""
    for phase, kind in FOLLOWED:
        errors_ = [failing(kind("no"), place) for place in (phase, "running", "")]
        found = [fallback.may_follow(error) for error in (*errors_, kind("no"))]
        assert found == [True, False, False, False], (phase, kind)


def test_every_error_of_jaxd_is_decided() -> None:
    """A new one has to be put into the table."""
    named = {getattr(errors, name) for name in errors.__all__}
    decided = {*FINAL, *(kind for _, kind in FOLLOWED)}
    decided |= {errors.JaxdError, errors.RemoteError, errors.TracerError, errors.CannotListen}
    assert {kind for kind in named - decided if not issubclass(kind, Warning)} == set()


def test_whose_raise_it_was() -> None:
    """The user's own is final, but for what jaxd raises; a package's is not."""
    own, package = __name__, "jax._src.core"
    assert not fallback.may_follow(failing(ValueError("no"), "building", own))
    assert fallback.may_follow(failing(ValueError("no"), "building", package))
    assert fallback.may_follow(failing(errors.LostUpdateError("no"), "building", own))
    assert fallback.may_follow(failing(ValueError("no"), "packing", own))


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
def test_what_would_end_this_process_is_final(name: str) -> None:
    """As an error of the server it ends nothing."""
    assert not fallback.may_follow(failing(errors.RemoteError("no", name), "building"))
    assert fallback.may_follow(failing(errors.RemoteError("no", "lib.Error"), "building"))


def test_the_option_is_checked() -> None:
    """Where the function is decorated."""
    given: Any = "remote"
    with pytest.raises(errors.ConfigurationError, match="Use one of: 'local', 'error'"):
        persistent_call(lambda x: x, fallback=given)
