"""The file of a pool: what it may have, and what is said of mistakes in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_server.pool.settings import MemberSettings, PoolSettings, read_pool_key, read_settings

WHOLE = """
name = "lab"
listen = "tls://0.0.0.0:7000"
advertise = "head.example"

[ray]
address = "10.0.0.1:6379"
token_file = "/etc/ray.token"

[members]
count = 3
min = 2
max = 6
devices = 2
platform = "gpu"
resources = { big = 1 }
version = "2"
python = "/opt/jaxd/bin/python"
store = "/shared/jaxd"
ports = "18870-18899"
arguments = ["--threads", "4"]
environment = { XLA_FLAGS = "--x" }

[quotas]
build_s = 3600
disk_bytes = 6000
"""


def written(folder: Path, text: str) -> str:
    """The path of a file with that text."""
    path = folder / "pool.toml"
    path.write_text(text)
    return str(path)


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    """Each setting; what one principal may use is divided by the most members."""
    found = read_settings(written(tmp_path, WHOLE))
    assert (found.name, found.advertise) == ("lab", "head.example")
    assert found.listen == Address.tls("0.0.0.0", 7000)
    assert (found.ray.address, found.ray.token_file) == ("10.0.0.1:6379", "/etc/ray.token")
    assert found.members == MemberSettings(
        3,
        2,
        6,
        2,
        "gpu",
        {"big": 1.0},
        "2",
        "/opt/jaxd/bin/python",
        "/shared/jaxd",
        (18870, 18899),
        ("--principal-build-s", "600.0", "--principal-disk-bytes", "1000", "--threads", "4"),
        {"XLA_FLAGS": "--x"},
    )
    travelled = json.loads(json.dumps(found.members.to_json()))
    assert MemberSettings.from_json(travelled) == found.members


def test_an_empty_file_is_a_pool_of_one_on_this_machine(runtime: Path) -> None:
    """Whose members share a store beside the user's cache."""
    found = read_settings(written(runtime, ""))
    assert found.name == "pool"
    assert found.members.store == f"{runtime}/cache/jaxd-pool-pool"
    assert found == PoolSettings(members=MemberSettings(store=found.members.store))


def test_a_cluster_elsewhere_has_no_store_that_is_not_named(tmp_path: Path) -> None:
    """Its nodes may have no folder in common; and one here may be without as well."""
    there = read_settings(written(tmp_path, '[ray]\naddress = "h:1"\n'))
    here = read_settings(written(tmp_path, '[members]\nstore = "none"\n'))
    assert there.members.store == here.members.store == ""


def test_servers_that_run_already_are_listed(tmp_path: Path) -> None:
    """By name, with their addresses."""
    text = '[[static]]\nname = "a"\naddresses = ["unix:///s", "tls://h:1"]\n'
    found = read_settings(written(tmp_path, text))
    assert found.static == {"a": ("unix:///s", "tls://h:1")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "is not TOML"),
        ("colour = 1", "'?colour'? is not a setting"),
        ("[members]\ncolour = 1", "members.colour is not a setting"),
        ("[quotas]\nbuild_s = 0\n", "quotas.build_s must be whole seconds above zero"),
        ("[quotas]\ndisk_bytes = 63\n", "quotas.disk_bytes must be at least members.max, 64"),
        ("[ray]\naddress = 'auto'\n", "ray.address must be HOST:PORT of a Ray cluster"),
        ("[ray]\naddress = 'head'\n", "ray.address must be HOST:PORT of a Ray cluster"),
        ("[members]\ncount = '3'", "members.count must be a whole number"),
        ("[members]\ncount = true", "members.count must be"),
        (
            "[members]\ncount = 9\nmax = 3",
            "from 1 .min. to 3 .max., and is 9",
        ),
        ("[members]\nmin = 9\nmax = 3", "members.min must be at most max, which is 3"),
        ("[member]\ncount = 1", r"member is not a setting.*\[members\], .*\[\[static\]\]"),
        ("[members]\nplatform = 'abacus'", "members.platform must be cpu, gpu or tpu"),
        ("[members]\nstore = 'here'", "members.store must be an absolute path"),
        ("[members]\nports = '7-3'", "members.ports must be first and last port"),
        ("[members]\narguments = [1]", "members.arguments must be a list of texts"),
        ("[members]\nenvironment = {A = 1}", "members.environment must be a table of texts"),
        ("members = 3", r"members must be a section, written as \[members\]"),
        ("name = 'a/b'", "name must be up to 31 letters"),
        ("listen = 'tcp://h:1'", "listen must be a tls:// address"),
        ("[[static]]\nname = 'a'", "static.name must be given, and addresses as well"),
        ("[[static]]\nname = 'a'\naddresses = ['ssh://h']", "static.addresses must be"),
        ("static = 1", r"static must be written as \[\[static\]\]"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    """With the file and the setting."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_settings(path)
    assert str(caught.value).startswith(path)
    assert str(caught.value).endswith((".", ")"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """And where there is an example."""
    with pytest.raises(ConfigurationError, match=r"docs/pool\.md"):
        read_settings(str(tmp_path / "pool.toml"))


def test_the_key_of_a_pool_is_made_once(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the other settings; a variable has another one."""
    first = read_pool_key()
    assert read_pool_key() == first == (runtime / "config/jaxd/pool.key").read_text().strip()
    monkeypatch.setenv("JAXD_POOL_KEY", "0123456789abcdef0123456789abcdef")
    assert read_pool_key() == "0123456789abcdef0123456789abcdef"
    monkeypatch.setenv("JAXD_POOL_KEY", "")
    with pytest.raises(ConfigurationError, match="JAXD_POOL_KEY"):
        read_pool_key()
