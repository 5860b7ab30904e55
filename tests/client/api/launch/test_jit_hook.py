"""What the hook replaces, and which calls of it a debugger or a coverage tool gets to see."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import jax  # noqa: F401  calls may run here only in a process that has it
import pytest

from jaxd.api.launch import jit_hook
from jaxd.connection.settings import Settings
from jaxd.dispatch.caller import CallerLookup
from jaxd_protocol.network.addresses import Address
from tests.client.fresh_process import in_a_fresh_process


def lookup(
    monkeypatch: pytest.MonkeyPatch, platform: str, server: Address | None, fallback: str | None
) -> tuple[Any, Any]:
    """What finds the caller of a hooked function, and that caller of a server with such devices."""
    settings = Settings(server=server, fallback=fallback)
    session = SimpleNamespace(settings=settings, platform=platform, current=lambda: None)
    caller: Any = SimpleNamespace(session=session, settings=settings)
    monkeypatch.setattr(jit_hook, "is_watched", lambda: True)
    return jit_hook._HookedLookup(caller=caller), caller


HERE = Address.unix("/s.sock")


@pytest.mark.parametrize(
    ("platform", "server", "fallback", "is_seen"),
    [
        ("cpu", HERE, None, True),
        ("gpu", HERE, None, False),
        ("gpu", HERE, "local", True),
        ("cpu", HERE, "error", False),
        ("gpu", None, None, True),  # of this environment: jax here has the same devices
        ("cpu", None, "error", False),
    ],
)
def test_calls_run_here_for_a_tool_only_where_any_call_may(
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    server: Address | None,
    fallback: str | None,
    is_seen: bool,
) -> None:
    """Never on the CPU of a client in the place of a server's GPU; they are counted."""
    find, caller = lookup(monkeypatch, platform, server, fallback)
    before = jit_hook.plain.watched
    assert find() is (None if is_seen else caller)
    assert jit_hook.plain.watched - before == is_seen


def test_what_is_asked_for_is_plain_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker of a test is no tool, and is not counted."""
    find, _ = lookup(monkeypatch, "gpu", HERE, "error")
    monkeypatch.setattr(jit_hook.plain, "is_wanted", True)
    before = jit_hook.plain.watched
    assert find() is None
    assert jit_hook.plain.watched == before


def test_a_tool_is_noticed() -> None:
    """By the trace function of this thread, or its number in `sys.monitoring`."""
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        seen = jit_hook.is_watched()
    finally:
        sys.settrace(before)
    assert seen
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(1) is None:
        monitoring.use_tool_id(1, "coverage")
        assert jit_hook.is_watched()
        monitoring.free_tool_id(1)


def test_other_persistent_functions_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their author has asked for the server."""
    _, caller = lookup(monkeypatch, "cpu", HERE, None)
    assert CallerLookup(caller=caller)() is caller


DEPRECATED = """
import importlib, json, sys, warnings
from jaxd.api.launch.jit_hook import JitHook
warnings.simplefilter("error")
NAME = "jax.experimental.pjit"

def asked(is_imported_first):
    hook, kinds, files = JitHook(), [], set()
    assert NAME not in sys.modules
    if is_imported_first:
        importlib.import_module(NAME)
    hook.install()
    module = importlib.import_module(NAME)
    for end in (lambda: None, hook.remove):
        end()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            kinds.append(type(module.pjit).__name__)
        files.update(each.filename for each in seen)
    del sys.modules[NAME]
    return kinds, sorted(files)

print(json.dumps([asked(False), asked(True)]))
"""


def test_a_deprecated_name_is_hooked_without_a_warning() -> None:
    """jax warns the program that asks for it, at its own line, and nobody who does not ask.

    Whether the module is imported before the hook is installed or after.
    """
    assert in_a_fresh_process(DEPRECATED) == [[["HookedJit", "function"], ["<string>"]]] * 2


def test_a_name_that_jax_has_given_up_is_left_alone() -> None:
    """Asking for it is the error that it is without the hook."""
    module: Any = ModuleType("jax.experimental.pjit")
    module._deprecations = {"pjit": ("It is gone.", None)}
    jit_hook.JitHook()._patch(module)
    assert module._deprecations == {"pjit": ("It is gone.", None)}
    assert "pjit" not in vars(module)
