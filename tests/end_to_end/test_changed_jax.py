"""Code of the user's in jax itself: what it changes is changed for its own process, and no other.

A client that has some gets its own results, or an error, and never a program that was made without
it; a function that would put some into the server's jax is an error, and jax is as before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import LostUpdateError, PackingError
from tests.live_server import LiveServer

jax = pytest.importorskip("jax")


import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.interpreters import ad, batching, mlir  # noqa: E402

pytestmark = pytest.mark.libraries("jax")

ONES = np.ones(2, np.float32)


def cosine(x: Any, **_: Any) -> Any:
    """What stands in the place of a sine."""
    return lax.cos(x)


def steep(primals: Any, tangents: Any, **_: Any) -> Any:
    """A derivative of a sine that is ten times that of the argument."""
    return lax.sin(*primals), tangents[0] * 10


def first(one: Any, _: Any) -> Any:
    """What stands in the place of a sum."""
    return one


def mapped(args: Any, axes: Any, **_: Any) -> Any:
    """What a sine is under `jax.vmap`."""
    return lax.cos(args[0]), axes[0]


Patch = pytest.MonkeyPatch
core: Any = jax._src.core  # with attributes that it does not declare
_lowered = mlir.lower_fun(cosine, multiple_results=False)


def _register(patch: Patch) -> None:
    patch.setitem(mlir._lowerings, lax.sin_p, mlir._lowerings[lax.sin_p])
    mlir.register_lowering(lax.sin_p, _lowered)


PUT_THERE: dict[str, Callable[[Patch], None]] = {
    "lowering": _register,
    "derivative": lambda patch: patch.setitem(ad.primitive_jvps, lax.sin_p, steep),
    "batching": lambda patch: patch.setitem(batching.fancy_primitive_batchers, lax.sin_p, _fancy),
    "sum": lambda patch: patch.setattr(core.ShapedArray, "_add", staticmethod(first)),
    "name": lambda patch: patch.setattr(jax._src.lax.lax, "add", first),
    "jitted, under a name": lambda patch: patch.setattr(jax._src.lax.lax, "add", jax.jit(first)),
}


def _fancy(_: Any, args: Any, axes: Any, **params: Any) -> Any:
    return mapped(args, axes, **params)


def work(x: Any) -> Any:
    """Something of all of it."""
    return jnp.sin(x), jax.jvp(jnp.sin, (x,), (x,))[1], jax.vmap(jnp.sin)(x) + x


def numbers(result: Any) -> list[Any]:
    """As they are compared."""
    return [np.asarray(each).tolist() for each in jax.tree.leaves(result)]


def again(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, which jax has not traced yet."""
    return lambda x: (function, function(x))[1]


@pytest.fixture(autouse=True)
def _forgotten() -> Any:
    """What jax has traced with one rule is not found with another."""
    yield
    jax.clear_caches()


@pytest.mark.filterwarnings("ignore::jaxd.errors.FallbackWarning")
@pytest.mark.parametrize("name", PUT_THERE)
def test_a_client_that_has_changed_jax_has_its_own_results(
    name: str, client: Client, monkeypatch: Patch
) -> None:
    """Also where the program without the change is known; where nothing runs here, an error."""
    served = client.persistent_call(work)
    before = numbers(served(ONES))
    PUT_THERE[name](monkeypatch)
    jax.clear_caches()
    plain = numbers(jax.jit(again(work))(ONES))
    assert plain != before
    with pytest.raises(PackingError, match="a server has jax as it was installed"):
        client.persistent_call(work)(ONES)
    assert numbers(client.persistent_call(work, fallback="local")(ONES)) == plain
    monkeypatch.undo()
    assert numbers(client.persistent_call(work)(ONES)) == before


def test_a_later_rule_counts_for_a_new_signature(client: Client, monkeypatch: Patch) -> None:
    """As under `jax.jit`, which traces for each signature once; and whatever asks for a program."""
    served, plain = client.persistent_call(work), jax.jit(again(work))
    more = np.ones(3, np.float32)
    assert numbers(served(ONES)) == numbers(plain(ONES))
    monkeypatch.setitem(ad.primitive_jvps, lax.sin_p, steep)
    assert numbers(served(ONES)) == numbers(plain(ONES))
    for ask in (served, served.warm, served.why, served.remote, served.vmap(), served.submit):
        with pytest.raises(PackingError, match=r"primitive_jvps\[sin\] is steep"):
            ask(more)
    monkeypatch.undo()
    jax.clear_caches()
    assert numbers(served(more)) == numbers(jax.jit(again(work))(more))


def test_names_that_a_function_looks_up_or_jax_does_not_know_are_its_own(
    live: LiveServer, client: Client, monkeypatch: Patch
) -> None:
    """What stands under them is a part of the function, or of nothing."""
    monkeypatch.setattr(jnp, "sin", lambda x: x * 3)
    monkeypatch.setattr(jnp, "a_name_of_mine", cosine, raising=False)
    assert np.asarray(client.persistent_call(lambda x: jnp.sin(x) + 1)(ONES)).tolist() == [4, 4]
    with connect(live.unix, place="here") as here:
        for each in (client, here):
            with pytest.raises(PackingError, match=r"jax\.numpy\.sin is .*<lambda>"):
                each.persistent_call(lambda x: x + 41)(ONES)


def test_a_listener_changes_no_program(client: Client, monkeypatch: Patch) -> None:
    """jax tells the user's code what it does, and nothing that it makes depends on that."""
    monitoring: Any = jax._src.monitoring
    for name in ("_event_listeners", "_event_duration_secs_listeners"):
        monkeypatch.setattr(monitoring, name, getattr(monitoring, name).copy())
    seen: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: seen.append(event))
    served = client.persistent_call(lambda x: jnp.sin(x) + 1, fallback="error")
    np.testing.assert_allclose(served(ONES), np.sin(ONES) + 1, rtol=1e-6)


HERE = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.interpreters import mlir
from jaxd import persistent_call

def cosine(x, **_):
    return lax.cos(x)

def step(x):
    return jnp.sin(x) * 2

if sys.argv[1] == "changed":
    mlir.register_lowering(lax.sin_p, mlir.lower_fun(cosine, multiple_results=False))
served = persistent_call(step, place=sys.argv[2], fallback="local")
x = np.ones(2, np.float32)
found = [served(x).tolist() for _ in range(3)]
assert found == [jax.jit(lambda x: step(x))(x).tolist()] * 3, found
print(json.dumps(found[0]))
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("place", ["server", "here", "auto"])
def test_no_process_gets_the_program_of_another_jax(place: str, live: LiveServer) -> None:
    """In each order, at each place."""
    found = [live.run(HERE, each, place) for each in ("changed", "plain", "changed")]
    assert [each.returncode for each in found] == [0] * 3, found[0].stderr
    changed, plain, after = [json.loads(each.stdout) for each in found]
    assert changed != plain
    assert after == changed


def registers(x: Any) -> Any:
    """Changes jax while it is traced."""
    mlir.register_lowering(lax.sin_p, mlir.lower_fun(cosine, multiple_results=False))
    return jnp.sin(x)


def derives(x: Any) -> Any:
    """Likewise."""
    ad.primitive_jvps[lax.sin_p] = steep
    return jnp.sin(x)


def removes(x: Any) -> Any:
    """Likewise, and puts nothing there."""
    ad.primitive_jvps.pop(lax.sin_p)
    return jnp.sin(x)


def assigns(x: Any) -> Any:
    """Likewise, in a module."""
    jnp.sin = cosine
    return jnp.sin(x)


def adds(x: Any) -> Any:
    """Likewise, in a class."""
    core.ShapedArray._add = staticmethod(first)
    return x + x


def fails(x: Any) -> Any:
    """Likewise, and raises."""
    core.ShapedArray._add = staticmethod(first)
    raise ValueError(str(x.shape))


@pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice")
@pytest.mark.parametrize("function", [registers, derives, removes, assigns, adds, fails])
def test_no_function_changes_jax_of_the_server(
    function: Callable[[Any], Any], client: Client
) -> None:
    """It is an error, each time; what is traced afterwards, by anybody, is as before."""
    changing = client.persistent_call(function)
    for _ in range(2):
        with pytest.raises((LostUpdateError, ValueError), match=r"changes (jax|the)|\(2,\)"):
            changing(ONES)
    number = len(function.__name__) + ord(function.__name__[0])
    after = client.persistent_call(lambda x: (work(x), number))
    assert numbers(after(ONES)[0]) == numbers(jax.jit(work)(ONES))


MODULE = """
from jax import lax
from jax.interpreters import mlir

def cosine(x, **_):
    return lax.cos(x)

mlir.register_lowering(lax.sin_p, mlir.lower_fun(cosine, multiple_results=False))

def scale(x):
    return x * 2
"""

IMPORTS = """
import numpy as np
from jaxd import persistent_call
from jaxd.errors import LostUpdateError

@persistent_call{options}
def step(x):
    import jax.numpy as jnp
    import own_rules
    return own_rules.scale(jnp.sin(x))

@persistent_call{options}
def other(x):
    import jax.numpy as jnp
    import own_rules
    return own_rules.scale(jnp.sin(x) + 1)

for each in (step, other, step):
    try:
        each(np.ones(2, np.float32))
    except LostUpdateError as error:
        assert "_lowerings[sin]" in str(error)
    else:
        raise AssertionError("it has the results of a jax without the rule")
"""


@pytest.mark.parametrize("options", ["", '(ship="source")'])
def test_a_module_that_changes_jax_when_it_is_imported_is_an_error(
    options: str, tmp_path: Path, live: LiveServer, client: Client
) -> None:
    """Each time and for each function that imports it, also where it was imported before."""
    (tmp_path / "own_rules.py").write_text(MODULE)
    path = os.pathsep.join((str(tmp_path), live.environment["PYTHONPATH"]))
    done = live.run(IMPORTS.replace("{options}", options), PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    sine = client.persistent_call(lambda x: jnp.sin(x) + len(options))
    np.testing.assert_allclose(sine(ONES), np.sin(ONES) + len(options), rtol=1e-6)
