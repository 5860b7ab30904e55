"""Which values the options of `persistent_call` take."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd import persistent_call
from jaxd.api.options import check_option_values
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.jit.options import CONFIG_DEFAULTS

CLIENT = SimpleNamespace(caller=None)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"results": "torch"}, "'auto', 'numpy', 'jax'"),
        ({"results": None}, "'auto', 'numpy', 'jax'"),
        ({"timeout_s": "3"}, "Give seconds"),
        ({"timeout_s": True}, "Give seconds"),
        ({"timeout_s": 0}, "positive number"),
        ({"timeout_s": -1.0}, "positive number"),
        ({"timeout_s": math.nan}, "positive number"),
        ({"timeout_s": math.inf}, "leave it out to wait without end"),
        ({"timeout_s": 1e300}, "positive number"),
        ({"strict": 1}, "True or False"),
        ({"strict": None}, "True or False"),
        ({"ship": "files"}, "'value', 'source'"),
        ({"ship": None}, "'value', 'source'"),
        ({"config": ["jax_enable_x64"]}, "Write it as"),
        ({"config": {"jax_platforms": "cpu"}}, "jax_enable_x64"),
        ({"config": {"jax_enable_x64": 1}}, "True or False"),
        ({"config": {"jax_default_matmul_precision": 3}}, "text or None"),
        ({"config": {"jax_default_prng_impl": None}}, "such as 'threefry2x32'"),
        ({"client": "tcp://gpu:1"}, "jaxd.connect"),
        ({"client": CLIENT, "server": "tcp://gpu:1"}, "Leave out server="),
        ({"client": CLIENT, "host": "gpu"}, "Leave out host="),
        ({"client": CLIENT, "port": 1}, "Leave out port="),
        ({"client": CLIENT, "token": "secret"}, "Leave out token="),
        ({"compiler_options": [("a", 1)]}, "Write it as"),
        ({"compiler_options": {1: 1}}, "Write it as"),
        ({"callbacks": print}, "Write it as callbacks="),
        ({"callbacks": [print, "log"]}, "Write it as callbacks="),
        ({"callbacks": {print: 1}}, "Write it as callbacks="),
    ],
    ids=str,
)
def test_a_value_that_is_not_usable(options: dict[str, Any], hint: str) -> None:
    """An error that says what is, already where the decorator stands."""
    with pytest.raises(ConfigurationError, match=hint):
        persistent_call(**options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"client": None, "server": "tcp://gpu:1", "timeout_s": None, "config": None},
        {"client": CLIENT, "server": None, "results": "numpy", "timeout_s": 0.5},
        {"strict": True},
        {"ship": "source"},
        {"config": dict(CONFIG_DEFAULTS), "timeout_s": 1},
        {"config": {"jax_default_matmul_precision": "highest"}},
        {"compiler_options": {"xla_embed_ir_in_executable": True}},
    ],
    ids=str,
)
def test_a_value_that_is(options: dict[str, Any]) -> None:
    """Also None, where leaving the option out means the same."""
    check_option_values(options)
