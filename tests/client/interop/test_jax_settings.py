"""What of jax's settings and contexts is read in the thread that calls."""

from __future__ import annotations

import _thread
import threading
import weakref
from typing import Any

import jax
import pytest
from jax._src import config as private

from jaxd.interop.jax_settings import (
    DISPATCHED,
    SettingsReader,
    SettingsWatch,
    settings_watch,
)
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


def test_a_context_of_a_module_that_is_imported_later(read: SettingsReader) -> None:
    """As unset as the others, until it is set."""
    assert read() == ()
    name = "pallas_fuser_disable_nested_fuse"  # a name that jax 0.11 has
    made: Any = private.config_ext.Config(
        name, False, include_in_jit_key=True, include_in_trace_context=True
    )
    assert read() == ()
    before = made.swap_local(True)
    with pytest.raises(PackingError, match=name):
        read()
    made.set_local(before)
    assert read() == ()


# changes -----------------------------------------------------------------------------------------


def watched() -> list[str]:
    """The settings that are watched here: what decides about a key and not about jax's dispatch."""
    return sorted(SettingsReader().names() - DISPATCHED)


def test_each_watched_setting_is_noticed_when_it_changes() -> None:
    """For the process, and in a context of a thread, which ends."""
    watch = SettingsWatch(watched())
    holders: Any = jax.config._value_holders
    assert "jax_default_prng_impl" in watched()
    for name in watched():
        mark = watch.mark
        jax.config.update(name, holders[name].value)
        assert watch.mark is not mark, name
        if isinstance(holders[name], private.State):
            mark = watch.mark
            with holders[name](holders[name].value):
                assert watch.mark is not mark
                assert watch.is_varied()
                mark = watch.mark
                with holders[name](holders[name].value):
                    pass
                assert watch.is_varied()
            assert watch.mark is not mark
            assert not watch.is_varied(), name


def test_what_jax_does_at_a_change_is_done() -> None:
    """As before: it looks for NaNs from then on."""
    SettingsWatch(["jax_debug_nans"])
    zero = jax.numpy.zeros(())
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.jit(lambda x: x / x)(zero)
    assert jax.numpy.isnan(jax.jit(lambda x: x / x)(zero))


def test_a_context_that_another_thread_is_in() -> None:
    """Threads differ until it has ended."""
    watch = SettingsWatch(["jax_debug_nans"])
    inside, done = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with jax.debug_nans(True):
            inside.set()
            assert done.wait(30)

    other = threading.Thread(target=elsewhere)
    other.start()
    assert inside.wait(30)
    assert watch.is_varied()
    with jax.debug_nans(True):
        pass
    assert watch.is_varied()
    done.set()
    other.join()
    assert not watch.is_varied()


def test_a_context_that_a_thread_ends_in() -> None:
    """Such as that of a generator that nobody closes: it is gone with the thread."""
    watch = SettingsWatch(["jax_debug_nans"])
    left: list[Any] = []
    other = threading.Thread(target=enter, args=(left,))
    other.start()
    other.join()
    assert not watch.is_varied()


def enter(left: list[Any]) -> None:
    """Enters a context, which stays."""
    left.append(jax.debug_nans(True))
    left[0].__enter__()


def test_a_thread_that_python_has_not_started_stays_in_its_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A library's may run Python again, with what it has set before."""
    holder = jax.config._value_holders["jax_debug_nans"]
    monkeypatch.setattr(holder, "_update_thread_local_hook", None)  # that of the whole process
    watch = SettingsWatch(["jax_debug_nans"])
    left: list[Any] = []
    kept, gone = threading.local(), threading.Event()

    def elsewhere() -> None:
        enter(left)
        kept.until_the_end = last = {0}
        weakref.finalize(last, gone.set)

    _thread.start_new_thread(elsewhere, ())
    assert gone.wait(10)
    assert watch.is_varied()


def test_without_the_hooks_nothing_is_watched() -> None:
    """A jax that has moved them, or a setting that has none: calls go the long way then."""
    with pytest.raises(LookupError, match="user_context"):
        SettingsWatch(["jax_debug_nans", "user_context"])
    assert settings_watch() is not None
