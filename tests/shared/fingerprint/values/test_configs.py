"""Configurations of ml_collections, omegaconf, fiddle and absl: the fields that are read."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint.values.configs import ReadFlags, is_config
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack_function
from tests.ids import row
from tests.shared.fingerprint.defining import digest_of, function, part_names, walk_of


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


def test_the_field_that_is_read_counts_and_travels() -> None:
    """Another one does neither; a change of the one is noticed between two calls."""
    for make, read, changed in READS:
        with row((make, read, changed)):
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


absl_flags = pytest.importorskip("absl.flags")
DEFINE_float, DEFINE_list = absl_flags.DEFINE_float, absl_flags.DEFINE_list
FlagValues: Any = absl_flags.FlagValues


@pytest.fixture
def flags() -> Any:
    """A registry of its own, parsed."""
    registry: Any = FlagValues()
    holder = DEFINE_float("rate", 0.5, "Read.", flag_values=registry)
    DEFINE_float("unread", 1.0, "Not read.", flag_values=registry)
    DEFINE_list("layers", ["8"], "Read.", flag_values=registry)
    registry(["program"])
    vars(registry)["holder"] = holder
    return registry


def of_flags(flags: Any, body: str) -> Any:
    """A function with that body."""
    return function(body, FLAGS=flags, RATE=flags.holder, NAME="rate")


def replaced(made: Any) -> Any:
    """The function as a server has it, after its way there."""
    return unpack_function(bytes(pack_function(made, "f", walk_of(made).reach))).function


ONE_FLAG = [
    "return FLAGS.rate",
    "return FLAGS['rate'].value",
    "return RATE.value",
    "return RATE.default, FLAGS.rate",
    "return getattr(FLAGS, 'rate')",
    "return (lambda: FLAGS.rate)()",
]


@pytest.mark.parametrize("body", ONE_FLAG)
def test_the_flag_that_is_read_counts(flags: Any, body: str) -> None:
    """Its change is noticed; no other flag counts, and no other travels."""
    made = of_flags(flags, body)
    walked = walk_of(made)
    flags.unread = 2.0
    assert walked.guards.hold()
    assert digest_of(made) == walked.fingerprint.digest
    flags.rate = 0.25
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest
    travels = [repr(each.fields) for each in walked.reach.fields.values()]
    assert any("rate" in each or "value" in each for each in travels)
    assert not any("unread" in each for each in travels)


ALL_FLAGS = [
    "return FLAGS[RATE.name].value",
    "return hasattr(FLAGS, 'rate') and FLAGS.rate",
    "return FLAGS[NAME].value",
    "return sorted(FLAGS)",
    "return FLAGS.flag_values_dict()",
    "return FLAGS.get_flag_value('rate', 1.0)",
    "return getattr(FLAGS, NAME)",
    "return [FLAGS][0].rate",
    "return 'rate' in FLAGS, len(FLAGS)",
]


@pytest.mark.parametrize("body", ALL_FLAGS)
def test_of_flags_as_a_whole_all_count(flags: Any, body: str) -> None:
    """Each of them may be read."""
    made = of_flags(flags, body)
    walked = walk_of(made)
    flags.unread = 2.0
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest


HOLDERS = ["return [held.value for held in [RATE]]", "return (lambda held: held.value)(*[RATE])"]


@pytest.mark.parametrize("body", [*ONE_FLAG, *ALL_FLAGS, *HOLDERS, "return FLAGS['rate'], 1"])
def test_on_a_server_it_reads_the_same_and_means_the_same(flags: Any, body: str) -> None:
    """With what replaces the flags there."""
    made = of_flags(flags, body)
    there = replaced(made)
    assert type(there.__globals__.get("FLAGS")) is not FlagValues
    found = there(1)
    assert "], 1" in body or found == made(1)
    assert digest_of(there) == digest_of(made)


@pytest.mark.parametrize(("before", "after"), [(1, True), (0.0, -0.0), (1, 1.0)])
def test_an_equal_value_of_another_type_is_another_one(
    flags: Any, before: object, after: object
) -> None:
    """Also between two calls."""
    made = of_flags(flags, "return FLAGS.rate")
    flags.rate = before
    walked = walk_of(made)
    flags.rate = after
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest


def test_its_part_has_the_name_that_code_gives_it(flags: Any) -> None:
    """As any value."""
    assert part_names(of_flags(flags, "return FLAGS.rate"))[-1] == "value: global FLAGS.rate"
    assert part_names(of_flags(flags, "return RATE.value"))[-1] == "value: global RATE.value"


def test_a_change_inside_of_a_flag_is_noticed(flags: Any) -> None:
    """A list is the same object before and after."""
    made = of_flags(flags, "return FLAGS.layers")
    walked = walk_of(made)
    flags.layers.append("16")
    assert not walked.guards.hold()


def test_flags_as_a_whole_that_are_not_parsed_are_refused(flags: Any) -> None:
    """They have no values yet."""
    made = of_flags(flags, "return sorted(FLAGS)")
    flags.unparse_flags()
    with pytest.raises(PackingError, match="before they were parsed"):
        walk_of(made)


def test_what_replaces_flags_has_no_others(flags: Any) -> None:
    """As absl's, where there is no such flag."""
    stand_in = replaced(of_flags(flags, "return FLAGS.rate")).__globals__["FLAGS"]
    assert type(stand_in) is ReadFlags
    assert is_config(stand_in)
    with pytest.raises(AttributeError, match="unread"):
        stand_in.unread  # noqa: B018
