from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.jit.options import CONFIG_DEFAULTS, CONFIG_FIXED
from jaxd_server.jax_compat.config import CONTEXTS, configured, pinned, restore_defaults
from tests.server.staging import join, start

OTHERS: dict[str, Any] = {
    "jax_enable_x64": True,
    "jax_default_matmul_precision": "highest",
    "jax_default_prng_impl": "rbg",
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_threefry_partitionable": False,
    "jax_debug_nans": True,
    "jax_debug_infs": True,
}


def now() -> dict[str, Any]:
    """The settings as they are in this thread."""
    return {name: getattr(jax.config, name) for name in CONFIG_DEFAULTS}


def test_every_setting_that_travels_has_a_context() -> None:
    """And there are no others, and each is tried below."""
    assert set(CONTEXTS) == set(CONFIG_DEFAULTS) == set(OTHERS)


def test_the_defaults_are_jaxs_own() -> None:
    """A setting that need not be said must be what jax does by itself, on this version."""
    assert now() == dict(CONFIG_DEFAULTS)


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_setting_is_in_force_inside_and_in_this_thread_only(name: str) -> None:
    """And is as it was afterwards."""
    elsewhere: list[dict[str, Any]] = []
    with configured(((name, OTHERS[name]),)):
        assert now() == {**CONFIG_DEFAULTS, name: OTHERS[name]}
        join([start(lambda: elsewhere.append(now()))])
    assert elsewhere == [dict(CONFIG_DEFAULTS)]
    assert now() == dict(CONFIG_DEFAULTS)


def test_all_of_them_can_be_set_together() -> None:
    """In the order in which they travel."""
    with configured(tuple(sorted(OTHERS.items()))):
        assert now() == OTHERS
    assert now() == dict(CONFIG_DEFAULTS)


def test_settings_decide_what_jax_computes() -> None:
    """Not only what it says of itself."""
    with configured((("jax_enable_x64", True),)):
        assert jnp.asarray(np.ones(2)).dtype == np.float64
    assert jnp.asarray(np.ones(2)).dtype == np.float32


def test_a_function_that_raises_leaves_no_setting_behind() -> None:
    """The thread serves other clients next."""
    with pytest.raises(ZeroDivisionError), configured((("jax_enable_x64", True),)):
        _ = 1 / 0
    assert now() == dict(CONFIG_DEFAULTS)


def test_a_value_that_jax_refuses_leaves_no_setting_behind() -> None:
    """Neither the refused one nor those that were set before it."""
    with pytest.raises(ValueError, match="bogus"):
        configured((("jax_enable_x64", True), ("jax_numpy_rank_promotion", "bogus")))
    assert now() == dict(CONFIG_DEFAULTS)


def test_nothing_to_set_costs_nothing() -> None:
    """The usual call has no settings of its own."""
    assert configured(()) is configured(())
    with configured(()), configured(()):
        assert now() == dict(CONFIG_DEFAULTS)


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


FIXED_OTHERS: dict[str, Any] = {
    "jax_random_seed_offset": 3,
    "jax_enable_custom_prng": True,
    "jax_legacy_prng_key": "error",
    "jax_softmax_custom_jvp": True,
    "jax_disable_jit": True,
}


@pytest.mark.parametrize("name", [*OTHERS, *FIXED_OTHERS])
def test_what_another_function_sets_for_the_process_is_not_seen_while_tracing(name: str) -> None:
    """Whether the setting travels or not; the one that travels counts."""
    assert set(FIXED_OTHERS) == set(CONFIG_FIXED)
    value = {**OTHERS, **FIXED_OTHERS}[name]
    mine = (("jax_default_matmul_precision", "float32"),)
    expected = {**CONFIG_FIXED, **CONFIG_DEFAULTS, **dict(mine)}
    try:
        with pinned(mine):
            jax.config.update(name, value)
            seen = {each: getattr(jax.config, each) for each in expected}
            assert seen == expected
    finally:
        assert restore_defaults() == [name]
