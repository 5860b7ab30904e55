"""Every setting and context of jax has its row: in the tables, and in docs/settings.md."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import jax
import pytest
from jax._src import config as private

from jaxd_protocol.jit.options import CONFIG_DEFAULTS, EXPORTED_CONFIG
from jaxd_protocol.jit.settings import (
    CLIENTS,
    CONTEXTS,
    LOCAL,
    REFUSED,
    SERVERS,
    context_of,
    when_run,
)

PAGE: Final = (Path(__file__).parents[3] / "docs" / "settings.md").read_text(encoding="utf-8")

TABLES: Final = (frozenset(CONFIG_DEFAULTS), LOCAL, frozenset(REFUSED), CLIENTS, SERVERS)

REFUSED_CONTEXTS: Final = {
    "pallas_tpu_interpret_mode_context_manager",
    "pallas_fuser_disable_nested_fuse",  # of a module of pallas that not every process has
    "layout_tracing_mode",
}
"""Those that are refused where they are set."""

WITH_ANOTHER_NAME: Final = {"AbstractMesh", "Mesh"}
"""Context managers that the page has as `with mesh:`."""


def test_every_setting_of_jax_has_one_row() -> None:
    """A new version of jax may have others: decide what becomes of each."""
    rows = [name for table in TABLES for name in table]
    assert len(rows) == len(set(rows))
    assert set(jax.config.values) - set(rows) == set()


def test_everything_that_a_trace_sees_has_a_row() -> None:
    """Of what jax compares before it uses a trace again, settings and contexts."""
    names = set(private.trace_context_names()) - set(jax.config.values)
    assert names - set(CONTEXTS) - REFUSED_CONTEXTS == set()
    travelling = set(CONFIG_DEFAULTS) | LOCAL | {"jax_default_device"}
    harmless = {n for n in SERVERS if "pgle" in n or "regex" in n}
    seen = set(private.trace_context_names()) & set(jax.config.values)
    assert seen - travelling - harmless == set()


def test_the_page_names_every_setting_and_its_default() -> None:
    """Of those that travel in its table, and the others in the part where they belong."""
    listed = dict(re.findall(r"^\| `(\w+)` \| `(.*)` \|$", PAGE, flags=re.MULTILINE))
    assert listed == {name: repr(value) for name, value in CONFIG_DEFAULTS.items()}
    _, here, there = re.split(r"^## (?:In your process|The server's)$", PAGE, flags=re.MULTILINE)
    assert {*CLIENTS, *LOCAL, *REFUSED} - set(re.findall(r"`(\w+)`", here)) == set()
    assert set(re.findall(r"`((?:jax|mock)\w+)`", there)) == SERVERS
    assert set(EXPORTED_CONFIG) <= set(CONFIG_DEFAULTS)


def _is_context(value: Any) -> bool:
    if isinstance(value, private.State):
        return True
    made_of = getattr(value, "__code__", None)
    return hasattr(value, "__enter__") or (
        made_of is not None and made_of.co_filename.endswith("contextlib.py")
    )


@pytest.mark.parametrize("module", [jax, jax.sharding], ids=["jax", "jax.sharding"])
def test_the_page_names_every_context_manager_of_jax(module: ModuleType) -> None:
    """Those that are settings by the name of the setting."""
    found = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and _is_context(value)
    }
    missing = {
        name
        for name, value in found.items()
        if not (isinstance(value, private.State) and f"`{value.name}`" in PAGE)
        and not re.search(rf"\b{name}\b", PAGE)
    }
    assert missing - WITH_ANOTHER_NAME == set()


def test_when_a_program_runs_few_settings_count() -> None:
    """A warm call enters no others."""
    config = (("jax.set_mesh", ()), ("jax_enable_x64", True), ("jax_softmax_custom_jvp", True))
    assert when_run(config) == (("jax_enable_x64", True),)


CONTEXT_VALUES: Final[dict[str, Any]] = {
    "device_context": ("jax.set_mesh", (("i",), (1,), ("Explicit",), (0,))),
    "abstract_mesh_context_manager": (
        "jax.sharding.use_abstract_mesh",
        (("i",), (1,), ("Auto",), ("cpu", None, "cpu")),
    ),
    "mesh_context_manager": ("jax.sharding.Mesh", ((("i",), (1,), ("Auto",), (0,)),)),
    "compute_on_context_manager": ("jax.experimental.compute_on", "device_host"),
    "xla_metadata_context_manager": ("jax.experimental.xla_metadata", (("a", "b"),)),
}


@pytest.mark.parametrize("name", CONTEXT_VALUES)
def test_a_context_is_entered_from_its_description_and_left_again(name: str) -> None:
    """What the client reads of it inside is the description again; nothing stays behind."""
    from jaxd.interop.jax_runtime import current_config

    assert CONTEXTS[name] == CONTEXT_VALUES[name][0]
    before = private.trace_context()
    with context_of(*CONTEXT_VALUES[name]):
        found = dict(current_config())
    entered = CONTEXT_VALUES[name]
    if name == "abstract_mesh_context_manager":  # of the platform here, which need not be said
        entered = (entered[0], (*entered[1][:3], None))
    assert found == dict([entered])
    assert private.trace_context() == before
    assert current_config() == ()
