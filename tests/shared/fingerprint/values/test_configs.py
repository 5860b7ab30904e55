"""Configurations of ml_collections, omegaconf and fiddle: the fields that a function reads."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from jaxd_protocol.fingerprint import walk
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack_function
from tests.shared.fingerprint.defining import digest_of, function, walk_of


def ml_config() -> Any:
    """One of ml_collections, of which a field refers to another."""
    library: Any = pytest.importorskip("ml_collections")
    made = library.ConfigDict({"lr": 0.5, "seed": 1, "model": {"width": 8, "name": "m"}})
    made.twice = made.get_ref("lr") * 2
    return made


def omega_config(**more: Any) -> Any:
    """One of omegaconf, with interpolations."""
    library: Any = pytest.importorskip("omegaconf")
    library.OmegaConf.register_new_resolver("double", lambda x: 2 * x, replace=True)
    content = {"lr": 0.5, "seed": 1, "twice": "${double:${lr}}", "again": "${model}"}
    content |= {"model": {"width": 8, "name": "m", "rate": "${..lr}"}, "sizes": [1, 2]}
    return library.OmegaConf.create(content | {"home": "${oc.env:CONFIGURED,nobody}"} | more)


def fiddle_config() -> Any:
    """One of fiddle."""
    library: Any = pytest.importorskip("fiddle")

    def build(lr: float, seed: int, twice: float = 1.0, model: Any = None) -> None:
        """Is not called."""

    return library.Config(build, lr=0.5, seed=1, model=library.Config(build, 1, 2))


def received(made: Any) -> Any:
    """The function as it arrives on a server, which must find the same meaning."""
    walked = walk(made, "f")
    manifest = FunctionManifest.of(walked.fingerprint)
    arrived = unpack_function(bytes(pack_function(made, "f", walked.reach)))
    there = manifest.there({**arrived.patched_modules, **arrived.modules}, arrived.sources)
    assert walk(arrived.function, "f", there).fingerprint.digest == walked.fingerprint.digest
    return arrived.function


ML, OMEGA, FIDDLE = ml_config, omega_config, fiddle_config
READS: list[tuple[Callable[[], Any], str, str]] = [
    (ML, "cfg.lr", "lr"),
    (ML, "cfg['lr']", "lr"),
    (ML, "cfg.get('lr')", "lr"),
    (ML, "cfg.get('lr', 1), cfg.get('none', 1)", "lr"),
    (ML, "getattr(cfg, 'lr')", "lr"),
    (ML, "cfg.twice", "lr"),
    (ML, "cfg.model.width", "model.width"),
    (ML, "use(cfg.model)", "model.width"),
    (ML, "'lr' in cfg, 'none' not in cfg", "lr"),
    (ML, "'name' in cfg.model and cfg.model.width", "model.width"),
    (OMEGA, "'lr' in cfg, 'none' not in cfg, 'home' in cfg", "lr"),
    (OMEGA, "cfg.lr", "lr"),
    (OMEGA, "cfg['lr']", "lr"),
    (OMEGA, "cfg.get('lr', 1), cfg.get('none', 1)", "lr"),
    (OMEGA, "cfg.twice", "lr"),
    (OMEGA, "cfg.model.rate", "lr"),
    (OMEGA, "cfg.model.width, use(cfg.model)", "model.width"),
    (OMEGA, "cfg.again.width", "model.width"),
    (OMEGA, "dict(cfg.model)", "model.width"),
    (OMEGA, "list(cfg.sizes), cfg.sizes[1]", "sizes[1]"),
    (FIDDLE, "cfg.lr", "lr"),
    (FIDDLE, "cfg.twice, cfg.lr", "twice"),
    (FIDDLE, "cfg.model.lr", "model.lr"),
]


@pytest.mark.parametrize(("make", "read", "changed"), READS)
def test_the_field_that_is_read_counts_and_travels(
    make: Callable[[], Any], read: str, changed: str
) -> None:
    """Another one does neither; a change of the one is noticed between two calls."""
    cfg = make()
    made = function(f"return {read}", cfg=cfg, use=function("return x.width"))
    walked = walk_of(made)
    there = received(made)
    assert there(1) == made(1)
    cfg.seed = 2
    assert walked.guards.hold()
    assert digest_of(made) == walked.fingerprint.digest
    exec(f"cfg.{changed} = 7", {"cfg": cfg})
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest
    assert received(made)(1) == made(1)


@pytest.mark.parametrize("make", [ML, OMEGA])
@pytest.mark.parametrize("body", ["return {**cfg}['twice']", "return [cfg][0].twice", "return cfg"])
def test_one_that_is_used_whole_travels_with_what_it_means_here(
    make: Callable[[], Any], body: str
) -> None:
    """References and interpolations are followed before."""
    cfg = make()
    made = function(body, cfg=cfg)
    walked = walk_of(made)
    assert received(made)(1) == made(1)
    cfg.seed = 2
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest


@pytest.mark.parametrize("body", ["return cfg.home", "return dict(cfg)['home']", "return use(cfg)"])
def test_a_variable_is_read_in_the_client_s_environment(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another value is another key, noticed between two calls; the server's does not matter."""
    cfg = omega_config()
    monkeypatch.setenv("CONFIGURED", "client")
    made = function(body, cfg=cfg, use=function("return x['home']"))
    walked = walk_of(made)
    data = bytes(pack_function(made, "f", walked.reach))
    monkeypatch.setenv("CONFIGURED", "server")
    assert unpack_function(data).function(1) == "client"
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest


def test_an_argument_is_what_it_means_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A static one, which travels by itself."""
    cfg = omega_config()
    monkeypatch.setenv("CONFIGURED", "one")
    first = pack(cfg, "an argument")
    assert pack(omega_config(), "an argument") == first
    monkeypatch.setenv("CONFIGURED", "two")
    assert pack(cfg, "an argument") != first
    assert os.environ["CONFIGURED"] == "two"


@pytest.mark.parametrize(
    ("read", "error"), [("late", "MissingMandatoryValue"), ("none", "ConfigAttributeError")]
)
def test_what_cannot_be_read_is_the_library_s_error(read: str, error: str) -> None:
    """When it is read, and not before."""
    made = function(f"return cfg.{read} if x else 0", cfg=omega_config(late="???"))
    there = received(made)
    assert there(0) == 0
    with pytest.raises(Exception, match=read) as found:
        there(1)
    assert type(found.value).__name__ == error


def test_what_fails_here_fails_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the server has such a variable."""
    there = received(
        function("return cfg.bad if x else 0", cfg=omega_config(bad="${oc.env:NOT_THERE}"))
    )
    monkeypatch.setenv("NOT_THERE", "server")
    with pytest.raises(Exception, match="could_not_be_resolved"):
        there(1)


def test_what_is_another_each_time_counts_as_it_was_found() -> None:
    """As under jax.jit: a random number does not compile anew in each call."""
    library: Any = pytest.importorskip("omegaconf")
    numbers = itertools.count()
    library.OmegaConf.register_new_resolver("next", lambda: next(numbers), replace=True)
    walked = walk_of(function("return cfg.n", cfg=library.OmegaConf.create({"n": "${next:}"})))
    assert walked.guards.hold()
    assert not walked.guards.complete
