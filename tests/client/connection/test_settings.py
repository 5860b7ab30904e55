from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxd.connection.settings import Settings, config_file
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.tokens import default_token_file, write_token_file

ARGUMENT, VARIABLE, FILE = (Address.tcp(name, 1) for name in ("argument", "variable", "file"))
ALONE: dict[str, Any] = {"inline": True}
"""Of a process that has no server."""


def write_config(text: str) -> None:
    path = Path(config_file())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def resolve(monkeypatch: pytest.MonkeyPatch, text: str, variables: dict[str, str]) -> Settings:
    """What is meant by a config file and the environment."""
    write_config(text)
    for name, value in variables.items():
        monkeypatch.setenv(f"JAXD_{name}", value)
    return Settings.resolve()


RESOLVED: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("", {}, {"server": None, "autostart": True, "inline": False}),
    (f'server = "{FILE}"', {}, {"server": FILE}),
    (f'server = "{FILE}"', {"SERVER": str(VARIABLE)}, {"server": VARIABLE}),
    ("autostart = false", {}, {"autostart": False}),
    ("", {"AUTOSTART": "0", "INLINE": "1"}, {"autostart": False, "inline": True}),
    ("", {"VERIFY": "1"}, {"verify": True}),
    ("verify = true", {"VERIFY": "0"}, {"verify": False}),
    ("verify = true", {"VERIFY": ""}, {"verify": True}),
    ('fallback = "local"', {}, {"fallback": "error"}),
    ('fallback = "local"', {"FALLBACK": ""}, {"fallback": "local"}),
    ("", {"FALLBACK": "local"}, {"fallback": "local"}),
    ("", {"COMPRESS": ""}, {"compress": False}),
    ("", {"COMPRESS": "1"}, {"compress": True}),
    ("compress = true", {"COMPRESS": ""}, {"compress": True}),
    ("compress = true", {"COMPRESS": "0"}, {"compress": False}),
    ("compress = false", {"COMPRESS": "1"}, {"compress": True}),
    ("", {"DEVICE": ""}, {"device": None}),
    ("", {"DEVICE": "3"}, {"device": 3}),
    ("device = 2", {"DEVICE": ""}, {"device": 2}),
    ("device = 2", {"DEVICE": "0"}, {"device": 0}),
    ("", {"TOKEN": " secret\n"}, {"token": "secret"}),  # the server reads it in the same way
    ("", {"TOKEN": " \n"}, {"token": None}),
    ('ca_file = "configured.pem"', {}, {"ca_file": "configured.pem"}),
    ('ca_file = "configured.pem"', {"CA_FILE": "named.pem"}, {"ca_file": "named.pem"}),
    ('server = "tcp://gpu:1"', {"SERVER": "none"}, ALONE),
    ('server = "none"', {"STORE": "/shared"}, {**ALONE, "store": "/shared"}),
    ("", {"SERVER": "none", "STORE": "/shared"}, {**ALONE, "store": "/shared"}),
    ("", {"SERVER": "none", "STORE": "/shared", "INLINE": "1"}, ALONE),
]


@pytest.mark.parametrize(("text", "variables", "wanted"), RESOLVED)
def test_the_environment_beats_the_file(
    runtime: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    variables: dict[str, str],
    wanted: dict[str, Any],
) -> None:
    """An empty variable says nothing; all tests say `JAXD_FALLBACK=error`."""
    assert resolve(monkeypatch, text, variables) == Settings(**{"fallback": "error", **wanted})


def test_an_argument_beats_both(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As text or as an address; one that is named is asked for, though there is to be none."""
    monkeypatch.setenv("JAXD_SERVER", "none")
    monkeypatch.setenv("JAXD_STORE", "/shared")
    for server in (ARGUMENT, str(ARGUMENT)):
        found = Settings.resolve(server)
        assert (found.server, found.inline, found.store) == (ARGUMENT, False, None)


def test_host_and_port_complete_each_other(runtime: Path) -> None:
    """localhost and 18861 are the defaults of TCP; nobody has to guess beside an address."""
    assert Settings.resolve(port=1).server == Address.tcp("localhost", 1)
    assert Settings.resolve(host="gpu").server == Address.tcp("gpu", 18861)
    with pytest.raises(ConfigurationError, match="Leave out host and port"):
        Settings.resolve(server="tcp://gpu", port=1)


REFUSED: list[tuple[str, dict[str, str], str]] = [
    ('server = "gpu:1"', {}, r"`server` in .*config.toml: 'gpu:1' is not"),
    ('server = "gpu:1"', {"SERVER": "gpu"}, "JAXD_SERVER: 'gpu' is not an address"),
    ("", {"FALLBACK": "remote"}, r"JAXD_FALLBACK is 'remote'. Write local, or"),
    ("", {"DEVICE": "-1"}, "JAXD_DEVICE='-1' is no device"),
    ("server = tcp://gpu", {}, "{config}.*is not TOML.*line 1"),
    ("sevrer = 'tcp://gpu'", {}, "{config}.*'sevrer' is not a setting.*known: server, token_file"),
    ("autostart = 0", {}, "{config}.*autostart = true or false"),
    ("device = true", {}, "{config}.*device = 0"),
    ("device = -1", {}, "{config}.*device = 0"),
    ("token_file = 1", {}, '{config}.*token_file = "…"'),
]


@pytest.mark.parametrize(("text", "variables", "reason"), REFUSED)
def test_what_is_wrong_names_where_it_stands(
    runtime: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    variables: dict[str, str],
    reason: str,
) -> None:
    """With what to correct; a typing error is never silently ignored."""
    with pytest.raises(ConfigurationError, match=reason.replace("{config}", config_file())):
        resolve(monkeypatch, text, variables)


def test_the_token_is_found_in_order(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Argument, variable, file of the variable, file of the config, file of `jaxd token`."""
    assert Settings.resolve().read_token() is None
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


def test_a_token_that_can_be_guessed_or_read_is_refused(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An impostor hears a proof, and may try any number at home; a file of all is no secret."""
    for settings in (Settings(token="hunter2hunter2"), Settings.resolve(token="0" * 64)):
        with pytest.raises(ConfigurationError, match="jaxd token"):
            settings.read_token()
    write_token_file(default_token_file())
    Path(default_token_file()).chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Settings.resolve().read_token()
    monkeypatch.setenv("JAXD_TOKEN", "correct horse")
    with pytest.raises(ConfigurationError, match="jaxd token") as caught:
        Settings.resolve().read_token()
    assert "horse" not in str(caught.value)


def test_settings_are_compared_by_what_they_say() -> None:
    """And do not show their token in logs and tracebacks; what is given replaces what was said."""
    one, same = Settings(token="s3cret", device=1), Settings(device=1).replaced(token="s3cret")
    assert (one, hash(one)) == (same, hash(same))
    assert one != same.replaced(device=2)
    assert "s3cret" not in f"{one!r} {one} {'%s' % one}"  # noqa: UP031
    with pytest.raises(TypeError):
        iter(one)  # type: ignore[call-overload]
