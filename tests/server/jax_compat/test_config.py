from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.jit.settings import LOCAL, plain
from jaxd_server.jax_compat.config import DEFAULTS, configured, pinned, restore_defaults
from tests.ids import row
from tests.server.staging import join, start

_CHOSEN: dict[str, Any] = {
    "jax_default_matmul_precision": "highest",
    "jax_default_prng_impl": "rbg",
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_error_checking_behavior_divide": "raise",
    "jax_error_checking_behavior_nan": "raise",
    "jax_error_checking_behavior_oob": "raise",
    "jax_explicit_x64_dtypes": "error",
    "jax_legacy_prng_key": "error",
    "jax_memory_fitting_level": "O1",
    "jax_optimization_level": "O1",
    "jax_pallas_auto_assign_collective_ids": "yes",
    "jax_use_hlo_logistic_lowering": True,
    "jax_use_magma": "off",
}


def _other(name: str, default: Any) -> Any:
    if name in _CHOSEN:
        return _CHOSEN[name]
    return not default if isinstance(default, bool) else default + 1


OTHERS: dict[str, Any] = {
    name: _other(name, value) for name, value in DEFAULTS.items() if name not in LOCAL
}
"""Another value for each setting that travels, and that jax of this process has."""


def now() -> dict[str, Any]:
    """The settings as they are in this thread."""
    return {name: plain(getattr(jax.config, name)) for name in OTHERS}


DEFAULT: dict[str, Any] = {name: DEFAULTS[name] for name in OTHERS}


def test_the_defaults_are_jaxs_own() -> None:
    """A setting that need not be said must be what jax does by itself, on this version."""
    assert now() == DEFAULT


def test_a_setting_is_in_force_inside_and_in_this_thread_only() -> None:
    """And is as it was afterwards."""
    elsewhere: list[dict[str, Any]] = []
    for name, value in OTHERS.items():
        with row(name), configured(((name, value),)):
            assert now() == {**DEFAULT, name: value}
            join([start(lambda: elsewhere.append(now()))])
        assert now() == DEFAULT, name
    assert elsewhere == [DEFAULT] * len(OTHERS)


def test_a_setting_that_this_jax_does_not_have_is_an_error_that_names_it() -> None:
    """What the client has set would be without effect."""
    with pytest.raises(ConfigurationError, match=r"jax_quantum is 'on'.*same jax on both ends"):
        configured((("jax_quantum", "on"),))
    with configured((("jax_quantum", False),)):
        assert now() == DEFAULT


def test_all_of_them_can_be_set_together() -> None:
    """In the order in which they travel; the usual call has none, which costs nothing."""
    with configured(tuple(sorted(OTHERS.items()))):
        assert now() == OTHERS
    assert now() == DEFAULT
    assert configured(()) is configured(())
    with configured(()), configured(()):
        assert now() == DEFAULT


def test_settings_decide_what_jax_computes() -> None:
    """Not only what it says of itself."""
    with configured((("jax_enable_x64", True),)):
        assert jnp.asarray(np.ones(2)).dtype == np.float64
    assert jnp.asarray(np.ones(2)).dtype == np.float32


def test_what_fails_leaves_no_setting_behind() -> None:
    """Neither a function that raises nor a value that jax refuses."""
    with pytest.raises(ZeroDivisionError), configured((("jax_enable_x64", True),)):
        _ = 1 / 0
    assert now() == DEFAULT
    with pytest.raises(ValueError, match="bogus"):
        configured((("jax_enable_x64", True), ("jax_numpy_rank_promotion", "bogus")))
    assert now() == DEFAULT


@pytest.mark.slow
def test_what_is_fixed_is_jaxs_own_default() -> None:
    """In a process that nobody set up; else results would differ from plain jax's."""
    program = """
import jax
from jaxd_server.jax_compat.config import restore_defaults
print(restore_defaults())
"""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_what_another_function_sets_for_the_process_is_not_seen_while_tracing() -> None:
    """Whether the setting travels or not; the one that travels counts."""
    mine = (("jax_default_matmul_precision", "float32"),)
    expected = {**DEFAULTS, **dict(mine)}
    for name in (*OTHERS, *sorted(LOCAL)):
        try:
            with row(name), pinned(mine):
                jax.config.update(name, OTHERS.get(name, True))
                assert {each: plain(getattr(jax.config, each)) for each in expected} == expected
        finally:
            assert restore_defaults() == [name]
