from __future__ import annotations

from pathlib import Path

import pytest

from jaxd.connection.settings import Settings, config_file
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.tokens import default_token_file, write_token_file

ARGUMENT, VARIABLE, FILE = (Address.tcp(name, 1) for name in ("argument", "variable", "file"))


def write_config(text: str) -> None:
    path = Path(config_file())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nothing_said_means_the_local_server(runtime: Path) -> None:
    """Started when it does not run, and needing no token; all tests say `JAXD_FALLBACK=error`."""
    settings = Settings.resolve()
    assert settings == Settings(server=None, autostart=True, inline=False, fallback="error")
    assert settings.read_token() is None


def test_an_argument_beats_the_environment_beats_the_file(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearer to the call, the stronger."""
    write_config(f'server = "{FILE}"')
    assert Settings.resolve().server == FILE
    monkeypatch.setenv("JAXD_SERVER", str(VARIABLE))
    assert Settings.resolve().server == VARIABLE
    assert Settings.resolve(server=str(ARGUMENT)).server == ARGUMENT
    assert Settings.resolve(server=ARGUMENT).server == ARGUMENT


def test_host_and_port_complete_each_other(runtime: Path) -> None:
    """localhost and 18861 are the defaults of TCP."""
    assert Settings.resolve(port=1).server == Address.tcp("localhost", 1)
    assert Settings.resolve(host="gpu").server == Address.tcp("gpu", 18861)


def test_server_and_host_together_are_refused(runtime: Path) -> None:
    """Nobody has to guess which of them counted."""
    with pytest.raises(ConfigurationError, match="Leave out host and port"):
        Settings.resolve(server="tcp://gpu", port=1)


def test_a_bad_address_names_where_it_stands(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable set long ago in some profile is hard to remember."""
    write_config('server = "gpu:1"')
    with pytest.raises(ConfigurationError, match=r"`server` in .*config.toml: 'gpu:1' is not"):
        Settings.resolve()
    monkeypatch.setenv("JAXD_SERVER", "gpu")
    with pytest.raises(ConfigurationError, match="JAXD_SERVER: 'gpu' is not an address"):
        Settings.resolve()


def test_switches_of_the_environment(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`JAXD_AUTOSTART=0`, `JAXD_INLINE=1` and `JAXD_FALLBACK=local`."""
    monkeypatch.setenv("JAXD_FALLBACK", "local")
    monkeypatch.setenv("JAXD_AUTOSTART", "0")
    monkeypatch.setenv("JAXD_INLINE", "1")
    assert Settings.resolve() == Settings(autostart=False, inline=True, fallback="local")


def test_the_variable_about_verification_wins_over_the_file(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways; by default it is off."""
    assert Settings.resolve().verify is False
    monkeypatch.setenv("JAXD_VERIFY", "1")
    assert Settings.resolve().verify is True
    write_config("verify = true")
    monkeypatch.setenv("JAXD_VERIFY", "0")
    assert Settings.resolve().verify is False
    monkeypatch.setenv("JAXD_VERIFY", "")
    assert Settings.resolve().verify is True


def test_what_cannot_become_of_a_call(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable wins over the file; either is checked, with where it was written."""
    write_config('fallback = "local"')
    assert Settings.resolve().fallback == "error"
    monkeypatch.setenv("JAXD_FALLBACK", "")
    assert Settings.resolve().fallback == "local"
    monkeypatch.setenv("JAXD_FALLBACK", "remote")
    with pytest.raises(ConfigurationError, match=r"JAXD_FALLBACK is 'remote'. Write local, or"):
        Settings.resolve()


@pytest.mark.parametrize(
    ("text", "variable", "wanted"),
    [
        ("", "", False),
        ("", "1", True),
        ("compress = true", "", True),
        ("compress = true", "0", False),
        ("compress = false", "1", True),
    ],
)
def test_compression_is_asked_for(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, text: str, variable: str, *, wanted: bool
) -> None:
    """By `JAXD_COMPRESS`, else in the config file."""
    write_config(text)
    monkeypatch.setenv("JAXD_COMPRESS", variable)
    assert Settings.resolve().compress is wanted


@pytest.mark.parametrize(
    ("text", "variable", "wanted"),
    [("", "", None), ("", "3", 3), ("device = 2", "", 2), ("device = 2", "0", 0)],
)
def test_a_device_is_asked_for(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, text: str, variable: str, wanted: int | None
) -> None:
    """By `JAXD_DEVICE`, else in the config file."""
    write_config(text)
    monkeypatch.setenv("JAXD_DEVICE", variable)
    assert Settings.resolve().device == wanted
    monkeypatch.setenv("JAXD_DEVICE", "-1")
    with pytest.raises(ConfigurationError, match="JAXD_DEVICE='-1' is no device"):
        Settings.resolve()


def test_autostart_can_be_switched_off_for_good(runtime: Path) -> None:
    """In the config file."""
    write_config("autostart = false")
    assert not Settings.resolve().autostart


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("server = tcp://gpu", "is not TOML.*line 1"),
        ("sevrer = 'tcp://gpu'", "'sevrer' is not a setting.*known: server, token_file"),
        ("autostart = 0", "autostart = true or false"),
        ("device = true", "device = 0"),
        ("device = -1", "device = 0"),
        ("token_file = 1", 'token_file = "…"'),
    ],
)
def test_a_broken_config_file_is_named(runtime: Path, text: str, reason: str) -> None:
    """With what to correct; a typing error is never silently ignored."""
    write_config(text)
    with pytest.raises(ConfigurationError, match=f"{config_file()}.*{reason}"):
        Settings.resolve()


def test_the_token_is_found_in_order(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Argument, variable, file of the variable, file of the config, file of `jaxd token`."""
    default = write_token_file(default_token_file())
    assert Settings.resolve().read_token() == default
    configured = write_token_file(str(runtime / "configured"))
    write_config(f'token_file = "{runtime}/configured"')
    assert Settings.resolve().read_token() == configured
    named = write_token_file(str(runtime / "named"))
    monkeypatch.setenv("JAXD_TOKEN_FILE", f"{runtime}/named")
    assert Settings.resolve().read_token() == named
    variable, argument = "variable" + default, "argument" + default
    monkeypatch.setenv("JAXD_TOKEN", variable)
    assert Settings.resolve().read_token() == variable
    assert Settings.resolve(token=argument).read_token() == argument


def test_a_token_that_can_be_guessed_is_refused(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it comes from: an impostor hears a proof, and may try any number at home."""
    for settings in (Settings(token="hunter2hunter2"), Settings.resolve(token="0" * 64)):
        with pytest.raises(ConfigurationError, match="jaxd token"):
            settings.read_token()
    monkeypatch.setenv("JAXD_TOKEN", "correct horse")
    with pytest.raises(ConfigurationError, match="jaxd token") as caught:
        Settings.resolve().read_token()
    assert "horse" not in str(caught.value)


def test_a_token_file_that_others_can_read_is_refused(runtime: Path) -> None:
    """Also the default one: it is no secret any more."""
    write_token_file(default_token_file())
    Path(default_token_file()).chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Settings.resolve().read_token()


def test_a_token_is_not_shown() -> None:
    """Settings end up in logs and tracebacks."""
    settings = Settings(token="s3cret")
    assert "s3cret" not in f"{settings!r} {settings} {'%s' % settings}"  # noqa: UP031
    with pytest.raises(TypeError):
        iter(settings)  # type: ignore[call-overload]


def test_settings_are_compared_by_what_they_say() -> None:
    """A client process has one connection for each; what is given replaces what was said."""
    one, same = Settings(token="t", device=1), Settings(device=1).replaced(token="t")
    assert (one, hash(one)) == (same, hash(same))
    assert one != same.replaced(device=2)


def test_white_space_around_the_token_is_not_part_of_it(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reads the variable in the same way."""
    monkeypatch.setenv("JAXD_TOKEN", " secret\n")
    assert Settings.resolve().token == "secret"
    monkeypatch.setenv("JAXD_TOKEN", " \n")
    assert Settings.resolve().token is None


def test_who_may_vouch_for_a_server(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names a CA before the config file does."""
    assert Settings.resolve().ca_file is None
    write_config('ca_file = "configured.pem"')
    assert Settings.resolve().ca_file == "configured.pem"
    monkeypatch.setenv("JAXD_CA_FILE", "named.pem")
    assert Settings.resolve().ca_file == "named.pem"


def test_there_may_be_no_server(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then calls run in this process, with programs of a store where one is named."""
    write_config('server = "tcp://gpu:1"')
    monkeypatch.setenv("JAXD_SERVER", "none")
    alone = Settings(inline=True, fallback="error")
    assert Settings.resolve() == alone
    monkeypatch.setenv("JAXD_STORE", "/shared")
    assert Settings.resolve() == alone.replaced(store="/shared")
    monkeypatch.setenv("JAXD_INLINE", "1")
    assert Settings.resolve().store is None
    monkeypatch.delenv("JAXD_INLINE")
    named = Settings.resolve("tcp://gpu:1")
    assert (named.inline, named.store) == (False, None)
    monkeypatch.delenv("JAXD_SERVER")
    write_config('server = "none"')
    assert Settings.resolve() == alone.replaced(store="/shared")
