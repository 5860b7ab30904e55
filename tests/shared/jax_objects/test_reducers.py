"""How jax objects travel: the same content arrives in another process."""

from __future__ import annotations

import base64
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.jax_objects.decomposition import reduce_jax
from jaxd_protocol.jax_objects.jit_objects import jit_options, jit_parts, make_jit
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.shared.jax_objects.samples_jax import cosine, product, samples, sine, up
from tests.shared.jax_objects.shown import digest
from tests.shared.pickling.processes import run

ROOT = Path(__file__).resolve().parents[3]
ARRIVE = """
import json, sys
from base64 import b64decode
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.shared.jax_objects.shown import digest
found = {name: digest(unpack(b64decode(blob))) for name, blob in json.load(sys.stdin).items()}
assert "tests.shared.jax_objects.samples_jax" not in sys.modules
print(json.dumps(found))
"""
CALLS = """
import json, sys
from base64 import b64decode
import jax
from jaxd_protocol.pickling.unpack.unpickler import unpack
sine, cosine, up, batched = unpack(b64decode(sys.stdin.read()))
print(json.dumps([
    float(jax.grad(sine)(1.0)),
    float(jax.grad(cosine)(1.0)),
    float(up(1.0)[0]) + up.rate,
    jax.vmap(batched)(jax.numpy.ones(2)).tolist(),
    up.lower(1.0).as_text() != "",
]))
"""


def sent(value: Any) -> Any:
    """The value as it arrives."""
    return unpack(pack(value, "it"))


def text_of(value: Any) -> str:
    """What is sent of it, as text."""
    return base64.b64encode(pack(value, "it")).decode()


@pytest.fixture(scope="module")
def arrived() -> dict[str, str]:
    """Digests of all samples as another process has them."""
    given = json.dumps({name: text_of(value) for name, value in samples().items()})
    found: dict[str, str] = json.loads(run(ARRIVE, cwd=ROOT, given=given, PYTHONHASHSEED="5"))
    return found


@pytest.mark.parametrize("name", [name for name in samples() if name != "pulled back"])
def test_an_object_arrives_with_the_same_object_parts(name: str, arrived: dict[str, str]) -> None:
    """So the server can check what it was sent."""
    assert arrived[name] == digest(samples()[name])


def test_what_pulls_cotangents_back_arrives_and_works() -> None:
    """Without the places in jax where its equations were made, which its parts show."""
    (found,) = sent(samples()["pulled back"])(1.0)
    assert found == jnp.cos(1.0)


@pytest.mark.slow
def test_functions_that_reach_themselves_arrive_and_work() -> None:
    """Rules of derivatives and recursive jitted functions find each other through globals."""
    given = text_of((sine, cosine, up, samples()["custom_vmap"]))
    assert json.loads(run(CALLS, cwd=ROOT, given=given)) == [2.0, 3.0, 6.0, [2.0, 2.0], True]


def test_a_device_that_is_not_there_is_named_together_with_those_that_are() -> None:
    """The message says what the caller can do."""
    build, _ = reduce_jax(jax.devices()[0])
    with pytest.raises(PackingError, match=r"cpu:99, and the server has only cpu:0.*leave"):
        build("cpu", 99)
    with pytest.raises(PackingError, match="no_such:0"):
        build("no_such", 0)


def test_what_belongs_to_its_process_says_what_to_do_instead() -> None:
    """Lowered and compiled programs, tracers."""
    lowered = jax.jit(product).lower(1.0, 2.0)
    errors: list[str] = []

    def capture(x: Any) -> Any:
        with pytest.raises(PackingError) as caught:
            reduce_jax(x)
        errors.append(str(caught.value))
        return x

    for value in (lowered, lowered.compile()):
        capture(value)
    jax.jit(capture)(1.0)
    texts = (
        "let the server lower it",
        "let the server compile it",
        "pass the value as an argument",
    )
    assert [text in error for text, error in zip(texts, errors, strict=True)] == [True] * 3


def test_a_primitive_that_no_module_has_does_not_travel() -> None:
    """It may be a library's, whose own code would not take a copy for it."""
    with pytest.raises(PackingError, match=r"the primitive own is in no module: make it a global"):
        pack([type(jax.lax.sin_p)("own")], "it")


def test_an_exported_program_travels_or_says_what_is_missing() -> None:
    """Its serial form is jax's own and needs a package that jax does not install."""
    from jax import export

    exported = export.export(jax.jit(lambda x: x + 1))(jnp.float32(1.0))  # it forgets weak types
    try:
        import flatbuffers  # noqa: F401
    except ImportError:
        with pytest.raises(PackingError, match="pip install flatbuffers"):
            reduce_jax(exported)
    else:
        assert digest(sent(exported)) == digest(exported)


def test_a_type_of_an_array_arrives_equal() -> None:
    """jax knows part of it by identity."""
    kind = jax.core.ShapedArray((2,), jnp.dtype("float32"))
    assert sent(kind) == kind


@pytest.mark.parametrize("value", [1, len, product, samples()["shape"]])
def test_everything_else_is_left_to_pickle(value: Any) -> None:
    """Also what jax itself can pickle."""
    assert reduce_jax(value) is NotImplemented


def test_without_options_there_are_none() -> None:
    """What is shipped is as short as what was written."""
    assert {key: value for key, value in jit_options(jax.jit(product)).items() if value} == {}


def test_static_arguments_are_static_again() -> None:
    """A static argument is a Python value when the function is traced."""
    seen: list[Any] = []

    def look(x: Any, n: Any) -> Any:
        seen.append(n)
        return x

    make_jit(look, jit_options(jax.jit(look, static_argnames="n")))(1.0, n=3)
    assert seen == [3]


def test_the_function_is_the_one_that_is_compiled() -> None:
    """Not the one that somebody has said it stands for, as decorators do."""
    assert jit_parts(jax.jit(product))["fun"] is product
    compiled = functools.partial(product, n=2)
    jitted: Any = functools.wraps(product)(jax.jit(compiled))
    assert jit_parts(jitted)["fun"] is compiled
