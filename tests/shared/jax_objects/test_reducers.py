"""How jax objects travel: the same content arrives in another process."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.jax_objects.reducers import reduce_jax
from tests.shared.jax_objects.by_value import dumps, run
from tests.shared.jax_objects.samples_jax import cosine, product, samples, sine, up
from tests.shared.jax_objects.shown import digest

ARRIVE = """
import json, pickle, sys
from base64 import b64decode
from tests.shared.jax_objects.shown import digest
blobs = json.load(open(sys.argv[1]))
found = {name: digest(pickle.loads(b64decode(blob))) for name, blob in blobs.items()}
assert "tests.shared.jax_objects.samples_jax" not in sys.modules
print(json.dumps(found))
"""
CALLS = """
import json, pickle, sys
import jax
sine, cosine, up, batched = pickle.load(open(sys.argv[1], "rb"))
print(json.dumps([
    float(jax.grad(sine)(1.0)),
    float(jax.grad(cosine)(1.0)),
    float(up(1.0)[0]) + up.rate,
    jax.vmap(batched)(jax.numpy.ones(2)).tolist(),
    up.lower(1.0).as_text() != "",
]))
"""


@pytest.fixture(scope="module")
def arrived(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of all samples as another process has them."""
    blobs = {name: base64.b64encode(dumps(value)).decode() for name, value in samples().items()}
    file = tmp_path_factory.mktemp("blobs") / "blobs.json"
    file.write_text(json.dumps(blobs))
    found: dict[str, str] = run(ARRIVE, str(file), seed="5")
    return found


@pytest.mark.parametrize("name", samples())
def test_an_object_arrives_with_the_same_object_parts(name: str, arrived: dict[str, str]) -> None:
    """So the server can check what it was sent."""
    assert arrived[name] == digest(samples()[name])


@pytest.mark.slow
def test_functions_that_reach_themselves_arrive_and_work(tmp_path: Path) -> None:
    """Rules of derivatives and recursive jitted functions find each other through globals."""
    file = tmp_path / "functions"
    file.write_bytes(dumps((sine, cosine, up, samples()["custom_vmap"])))
    assert run(CALLS, str(file)) == [2.0, 3.0, 6.0, [2.0, 2.0], True]


def test_what_jax_defines_travels_by_name() -> None:
    """A few bytes, and on the server it is the server's own."""
    assert pickle.loads(dumps(jnp.sin)) is jnp.sin
    assert len(dumps(jnp.sin)) < 120


def test_a_device_that_is_not_there_is_named_together_with_those_that_are() -> None:
    """The message says what the caller can do."""
    build, _ = reduce_jax(jax.devices()[0])
    with pytest.raises(PackingError, match=r"cpu:99, and the server has only cpu:0.*leave"):
        build("cpu", 99)
    with pytest.raises(PackingError, match="no_such:0"):
        build("no_such", 0)


def test_a_primitive_of_the_users_own_cannot_travel() -> None:
    """Its rules are in tables of jax, which no one can read back."""
    own = type(jax.lax.sin_p)("own")
    with pytest.raises(PackingError, match=r"the primitive own .*installed on both ends"):
        reduce_jax(own)


def test_lowered_and_compiled_programs_and_tracers_say_what_to_do_instead() -> None:
    """They belong to the process that made them."""
    lowered = jax.jit(product).lower(1.0, 2.0)
    with pytest.raises(PackingError, match="let the server lower it"):
        reduce_jax(lowered)
    with pytest.raises(PackingError, match="let the server compile it"):
        reduce_jax(lowered.compile())
    errors: list[Any] = []

    def capture(x: Any) -> Any:
        try:
            reduce_jax(x)
        except PackingError as error:
            errors.append(str(error))
        return x

    jax.jit(capture)(1.0)
    assert "pass the value as an argument" in errors[0]


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
        assert digest(pickle.loads(dumps(exported))) == digest(exported)


def test_a_type_of_an_array_arrives_equal() -> None:
    """jax knows part of it by identity."""
    kind = jax.core.ShapedArray((2,), jnp.dtype("float32"))
    assert pickle.loads(dumps(kind)) == kind


@pytest.mark.parametrize("value", [1, len, product, samples()["shape"]])
def test_everything_else_is_left_to_pickle(value: Any) -> None:
    """Also what jax itself can pickle."""
    assert reduce_jax(value) is NotImplemented
