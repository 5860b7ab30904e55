"""What of jax's settings and contexts is read in the thread that calls."""

from __future__ import annotations

import jax
import pytest
from jax._src import config as private

from jaxd.interop.jax_settings import SettingsReader
from jaxd_protocol.errors import PackingError


@pytest.fixture
def read() -> SettingsReader:
    """A reader of its own."""
    return SettingsReader()


def test_what_is_read_again_is_the_same_object(read: SettingsReader) -> None:
    """So that a warm call does nothing but compare."""
    with jax.enable_x64(True):
        first = read()
        assert read() is first
    assert read() == ()
    with jax.enable_x64(True):
        assert read() is first


def test_more_settings_than_are_remembered_are_read_anew(read: SettingsReader) -> None:
    """And each is right."""
    for seed in [*range(20), *range(20)]:
        with private.random_seed_offset(seed):
            assert read() == ((("jax_random_seed_offset", seed),) if seed else ())


def test_enums_travel_as_their_text(read: SettingsReader) -> None:
    """As a literal, whichever kind of enum it is."""
    with private.explicit_x64_dtypes("error"), private.legacy_prng_key("warn"):
        assert read() == (("jax_explicit_x64_dtypes", "error"), ("jax_legacy_prng_key", "warn"))


def test_user_contexts_are_not_read(read: SettingsReader) -> None:
    """They are made later than the reader, and belong to whoever made them."""
    mine = jax.make_user_context("unset")
    with mine("set"):
        assert read() == ()


def test_a_setting_that_no_table_knows_travels_always(
    read: SettingsReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jax is newer than we are: whether it is at its default cannot be told."""
    monkeypatch.setattr("jaxd.interop.jax_settings.CONFIG_DEFAULTS", {"jax_enable_x64": False})
    assert ("jax_threefry_partitionable", True) in read()


def test_flags_of_a_process_that_change_programs_are_refused(read: SettingsReader) -> None:
    """No server has them."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with pytest.raises(PackingError, match=r"most_optimizations is True.*JAXD_INLINE"):
            read()
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    assert read() == ()


def test_a_mesh_of_other_devices_cannot_travel(read: SettingsReader) -> None:
    """Such as one of devices that jax here does not count among its own."""
    mesh = jax.make_mesh((1,), ("i",))
    with jax.set_mesh(mesh), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", list)
        with pytest.raises(PackingError, match="does not travel"):
            read()
