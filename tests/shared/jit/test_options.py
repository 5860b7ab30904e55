from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxd_protocol.errors import ConfigurationError, ProtocolError
from jaxd_protocol.jit.options import (
    CONFIG_DEFAULTS,
    Options,
    fingerprint_of,
    function_key,
    normal_config,
)
from jaxd_protocol.jit.transforms import encode_transformation
from jaxd_protocol.pytree import dump_literal
from tests.ids import row

EVERY_ONE_CHANGED = [
    Options(),
    Options(static_argnums=()),
    Options(static_argnums=(0,)),
    Options(static_argnums=(1,)),
    Options(static_argnames=("n",)),
    Options(donate_argnums=(0,)),
    Options(donate_argnames=("n",)),
    Options(keep_unused=True),
    Options(inline=True),
    Options(compiler_options=(("xla_a", True),)),
    Options(compiler_options=(("xla_a", 1),)),
    Options(inline="jax_late"),
    Options(in_shardings=b"a"),
    Options(out_shardings=b"a"),
    Options(static="jax"),
    Options(config=(("jax_enable_x64", True),)),
    Options(extra_key="a"),
    Options(extra_key=b"a"),
    Options(transformations=(encode_transformation("grad", {}),)),
    Options(transformations=(encode_transformation("grad", {}), encode_transformation("vmap", {}))),
    Options(transformations=(encode_transformation("vmap", {}), encode_transformation("grad", {}))),
    Options(device=0),
    Options(device=1),
]


def test_options_that_differ_have_different_bytes() -> None:
    """Each field is part of a function's key."""
    assert set(Options._fields) == {
        name
        for options in EVERY_ONE_CHANGED
        for name, value in options._asdict().items()
        if value != getattr(Options(), name)
    }
    assert len({options.to_bytes() for options in EVERY_ONE_CHANGED}) == len(EVERY_ONE_CHANGED)


def test_who_says_no_device_has_the_key_that_there_was_before_there_were_any() -> None:
    """What is on disk stays good."""
    before = tuple(item for item in Options(extra_key="a")._asdict().items() if item[0] != "device")
    assert Options(extra_key="a").to_bytes() == dump_literal(before)


def test_an_inner_function_has_the_options_of_jit() -> None:
    """Only what is not the default, and neither settings nor what tells keys apart."""
    assert Options(config=(("jax_enable_x64", True),), extra_key="a", device=1).of_jit() == ()
    options = Options(static_argnames=("n",), static="jax")
    assert options.of_jit() == (("static_argnames", ("n",)), ("static", "jax"))
    assert Options(**dict(options.of_jit())) == options


def test_an_inline_that_jax_does_not_have_is_refused() -> None:
    """jax 0.10 has only yes and no."""
    import jax

    with pytest.raises(ConfigurationError, match="install the same jax"):
        Options(inline="no_such").jit_arguments()
    if hasattr(jax, "Inline"):
        late = Options(inline="jax_late").jit_arguments()
        assert late == {"inline": jax.Inline.JAX_LATE}


def test_options_come_back() -> None:
    """The same, with the same bytes."""
    for options in EVERY_ONE_CHANGED:
        with row(options):
            found = Options.from_bytes(options.to_bytes())
            assert found == options
            assert found.to_bytes() == options.to_bytes()


@given(st.binary(max_size=60))
@example(dump_literal(3))
@example(dump_literal((1, 2)))
@example(dump_literal((("a", "b", "c"),)))
@example(dump_literal((("no_such", 1),)))
@example(dump_literal(((1, 1),)))
@example(Options().to_bytes() + b"0")
def test_garbage_is_refused_in_our_own_words(data: bytes) -> None:
    """Whatever stands where options belong."""
    try:
        options = Options.from_bytes(data)
    except ProtocolError:
        return
    assert options.to_bytes()


def test_jax_is_given_only_what_was_said() -> None:
    """Its own defaults stay its own."""
    assert Options(config=(("jax_enable_x64", True),), extra_key=1).jit_arguments() == {}
    every = Options((0,), (), (1,), ("b",), True, True, (("xla_a", 1),))
    assert every.jit_arguments() == {
        "static_argnums": (0,),
        "static_argnames": (),
        "donate_argnums": (1,),
        "donate_argnames": ("b",),
        "keep_unused": True,
        "inline": True,
        "compiler_options": {"xla_a": 1},
    }


def test_settings_that_are_defaults_need_not_be_said() -> None:
    """However they are ordered: equal configurations are one key."""
    some = {"jax_enable_x64": True, "jax_debug_nans": True}
    backwards = dict(reversed(some.items())) | {"jax_debug_infs": False}
    assert normal_config(some) == normal_config(backwards)
    assert normal_config(some) == (("jax_debug_nans", True), ("jax_enable_x64", True))
    assert normal_config(CONFIG_DEFAULTS) == ()


def test_a_setting_that_does_not_travel_says_which_do() -> None:
    """Another would silently have no effect."""
    with pytest.raises(ConfigurationError, match=r"'jax_platforms'.*jax_enable_x64"):
        normal_config({"jax_platforms": "cpu"})


def test_a_key_stands_for_code_and_options() -> None:
    """Sixteen bytes, another for each change."""
    codes = [fingerprint_of(code) for code in (b"", b"a", b"b")]
    keys = {function_key(code, options) for code in codes for options in EVERY_ONE_CHANGED}
    assert len(keys) == 3 * len(EVERY_ONE_CHANGED)
    assert {len(key) for key in keys} == {len(code) for code in codes} == {16}
    assert fingerprint_of(b"a") == fingerprint_of(b"a")
