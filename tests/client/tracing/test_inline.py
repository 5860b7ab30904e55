"""`jax.jit` in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxd
from jaxd import Client, PRNGKeys, persistent_call
from jaxd.tracing.inline import InlineFunction, local_devices
from jaxd_protocol.errors import NoServer
from jaxd_protocol.jit.options import CONFIG_DEFAULTS, Options
from tests.ids import row


def test_what_jax_cannot_trace_is_static() -> None:
    """By its content, as on a server, unless jax's own rule is asked for; warmed as well."""
    traces = []

    def scale(x: Any, how: Any) -> Any:
        traces.append(how["mode"])
        return x * 2 if how["mode"] == "double" else x * how["by"]

    InlineFunction(scale, Options()).warm((2.0,), {"how": {"mode": "dou" + "ble", "by": 3.0}})
    function = InlineFunction(scale, Options())
    for mode in ("double", "times", "double"):
        found = function(2.0, how={"mode": mode, "by": 3.0})
        assert float(found) == (4.0 if mode == "double" else 6.0)
    assert traces == ["double", "times"]
    with pytest.raises(TypeError, match="as an abstract array"):
        InlineFunction(scale, Options(static="jax"))(2.0, how={"mode": "times", "by": 3.0})


def test_under_the_rule_of_jax_arguments_are_taken_apart_by_jax_alone() -> None:
    """A node of a tree that is made anew each time a little differently is made as often."""
    import jax

    made = []

    @jax.tree_util.register_pytree_node_class
    class Counted:
        def __init__(self, value: Any) -> None:
            self.value = value

        def tree_flatten(self) -> tuple[tuple[Any], None]:
            return (self.value,), None

        @classmethod
        def tree_unflatten(cls, _: None, leaves: tuple[Any, ...]) -> Counted:
            made.append(1)
            return cls(*leaves)

    def doubled(node: Counted) -> Any:
        return node.value * 2

    counts = []
    for function in (jax.jit(doubled), InlineFunction(doubled, Options(static="jax"))):
        made.clear()
        assert float(function(Counted(3.0))) == 6.0
        counts.append(len(made))
    assert counts[0] == counts[1] + 1 == 1  # the second finds what jax has traced


def test_what_was_warmed_is_not_traced_again() -> None:
    """For specs of any kind, under the settings of the function."""
    import jax

    seen = []

    def traced(x: Any, n: int) -> Any:
        seen.append((x.shape, x.dtype.name))
        return x * n

    class Spec:
        shape, dtype = (3,), "float64"

    options, config = Options(static_argnames=("n",)), (("jax_enable_x64", True),)
    warmed = InlineFunction(traced, options, config).warm((Spec(), 2), {})
    assert (warmed.verdict, warmed.seconds > 0, seen) == ("compile", True, [((3,), "float64")])
    called = InlineFunction(traced, options, config)(np.ones(3), 2)
    assert (called.dtype, len(seen)) == ("float64", 1)
    assert jax.numpy.ones(1).dtype == "float32"


def test_without_jax_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both ways out."""
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(NoServer, match=r"pip install.*unset JAXD_INLINE"):
        InlineFunction(lambda x: x, Options())
    with pytest.raises(NoServer, match=r"pip install.*unset JAXD_INLINE"):
        local_devices()


def test_the_variable_decides_at_the_first_call(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server is looked for; errors of futures are in the futures."""

    @persistent_call
    def broken(x: Any) -> Any:
        raise KeyError("mine")

    monkeypatch.setenv("JAXD_INLINE", "1")
    monkeypatch.setenv("JAXD_AUTOSTART", "0")
    with pytest.raises(KeyError, match="mine"):
        broken(1.0)
    assert isinstance(broken.submit(1.0).exception(), KeyError)
    assert list(runtime.iterdir()) == []


def test_settings_and_form_of_results_are_as_on_a_server() -> None:
    """Afterwards the process's own settings hold again."""
    import jax

    config = {"jax_enable_x64": True, "jax_default_prng_impl": "rbg"}
    seen = []

    def traced(x: Any) -> Any:
        seen.append({name: getattr(jax.config, name) for name in config})
        return x * 2, jax.random.key(0)

    array, keys = InlineFunction(traced, Options(), tuple(config.items()), "numpy")(np.ones(2))
    assert seen == [config]
    assert (type(array), array.dtype, array.flags.writeable) == (np.ndarray, np.float64, True)
    assert (type(keys), keys.impl) == (PRNGKeys, "rbg")
    assert isinstance(InlineFunction(lambda x: x, Options(), tuple(config.items()))(1.0), jax.Array)
    assert all(getattr(jax.config, name) == CONFIG_DEFAULTS[name] for name in config)


def test_each_setting_that_travels_can_be_applied() -> None:
    """jax has a context manager for it."""
    for name in CONFIG_DEFAULTS:
        with row(name):
            value = CONFIG_DEFAULTS[name]
            assert float(InlineFunction(lambda x: x, Options(), ((name, value),))(1.0)) == 1.0


def test_nothing_connects(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for a server is told why there is none."""
    monkeypatch.setenv("JAXD_INLINE", "1")
    for ask in (jaxd.statistics, jaxd.connect, lambda: jaxd.connect("tcp://127.0.0.1:1")):
        with pytest.raises(NoServer, match="Unset JAXD_INLINE"):
            ask()


def test_a_client_that_is_given_is_used(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is more explicit than the variable."""
    monkeypatch.setenv("JAXD_INLINE", "1")
    double: Any = persistent_call(lambda x: x * 2, client=client)
    before = client.statistics().calls
    assert float(double(2.0)) == 4.0
    assert client.statistics().calls == before + 1


def test_its_stages_are_jaxs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the function's settings; what jax cannot trace is static there too."""
    import jax

    def layer(x: Any, w: Any, mode: str = "plus") -> Any:
        return x @ w + 1 if mode == "plus" else x

    spec = jax.ShapeDtypeStruct((3, 2), np.float32)
    x = np.ones((2, 3), np.float32)
    monkeypatch.setenv("JAXD_INLINE", "1")
    function = persistent_call(layer, config={"jax_enable_x64": True})
    with jax.enable_x64(True):
        assert function.jaxpr(x, spec) == str(jax.make_jaxpr(layer)(x, spec))
    lowered: Any = function.lower(np.ones((2, 3)), spec, "minus")
    assert isinstance(lowered, jax.stages.Lowered)
    assert "f64" in lowered.as_text()
