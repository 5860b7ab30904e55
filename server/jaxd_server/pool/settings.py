"""The settings of a pool: the file `pool.toml`, and the secret that all parts of a pool have."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from jaxd_protocol import __version__
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import PoolFiles, cache_root
from jaxd_protocol.network.tokens import read_secret_key

PLATFORMS: Final = ("cpu", "gpu", "tpu")
_NAME: Final = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,30}")
_MOST_MEMBERS: Final = 10_000
_NO_STORE: Final = "none"


def read_pool_key() -> str:
    """The secret key of this user's pools, as `read_secret_key` finds it.

    Raises:
        ConfigurationError: as that.
    """
    return read_secret_key("pool")


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """How members are started, and how many.

    Attributes:
        count: how many a new pool has.
        least, most: how many `jaxd pool scale` allows.
        devices: of each.
        platform: what they compute on.
        resources: what else of Ray's resources each takes.
        version: what they are called that are started so; members of another version are replaced.
        python: the interpreter that runs them; empty: that of the node's Ray.
        store: the folder that they share programs in; empty: none.
        ports: the first and last one that they listen on; zeros: any free ones.
        arguments: of `jaxd serve`, beside those that a pool gives.
        environment: of their processes, beside that of Ray.
    """

    count: int = 1
    least: int = 1
    most: int = 64
    devices: int = 1
    platform: str = "cpu"
    resources: Mapping[str, float] = field(default_factory=dict)
    version: str = __version__
    python: str = ""
    store: str = ""
    ports: tuple[int, int] = (0, 0)
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> MemberSettings:
        """What `to_json` made."""
        found: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in content.items()
        }
        return cls(**found)


@dataclass(frozen=True, slots=True)
class RaySettings:
    """The Ray cluster of a pool.

    Attributes:
        address: of one that runs; empty: one is started on this machine.
        token_file: with the token of the cluster; empty: one beside the pool's other files.
        node_address: of this machine, for a cluster that is started; empty: Ray finds it.
        cpus, gpus: of that one; -1: what Ray finds.
    """

    address: str = ""
    token_file: str = ""
    node_address: str = ""
    cpus: int = -1
    gpus: int = -1

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """How the number of members follows the load, between their least and most.

    Attributes:
        busy: open calls for each device, above which there are to be more members, and below half
            of which there may be fewer; 0: the number stays.
        up_s: for so long it has to be above.
        down_s: for so long it has to be below.
    """

    busy: float = 0.0
    up_s: float = 10.0
    down_s: float = 300.0


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The settings of a pool.

    Attributes:
        name: of the pool.
        listen: where its director listens for clients.
        advertise: the name of its machine for other machines; empty: the host name.
        ray: the cluster that runs its members.
        members: how these are started.
        scaling: how many there are.
        static: members that run already, by name, with their addresses; then there is no Ray.
    """

    name: str = "pool"
    listen: Address = Address.tls("0.0.0.0")  # noqa: RUF009, S104  a named tuple; for others
    advertise: str = ""
    ray: RaySettings = field(default_factory=RaySettings)
    members: MemberSettings = field(default_factory=MemberSettings)
    scaling: ScalingSettings = field(default_factory=ScalingSettings)
    static: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def files(self) -> PoolFiles:
        """Those of the director."""
        return PoolFiles.of(self.name)


def read_settings(path: str) -> PoolSettings:
    """The settings in a file.

    Raises:
        ConfigurationError: when it cannot be read, or has something else than settings; says which
            line of the file is meant.
    """
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}. docs/pool.md has an example of a pool.toml."
        ) from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise ConfigurationError(f"{path} is not TOML: {error}. Correct that line.") from error
    return _Reader(path).settings(content)


class _Reader:
    """Checks what a file has; each error names the setting."""

    def __init__(self, path: str) -> None:
        self._path = path

    def settings(self, content: Mapping[str, Any]) -> PoolSettings:
        """The settings."""
        sections = {name: content.get(name, {}) for name in _PARTS}
        top = {name: value for name, value in content.items() if name not in _SECTIONS}
        found = self._section("", top, _TOP)
        ray = RaySettings(**self._section("ray", sections["ray"], _RAY))
        quotas = self._section("quotas", sections["quotas"], _QUOTAS)
        static = self._static(content.get("static", []))
        name = found.get("name", PoolSettings().name)
        members = self._members(sections["members"], quotas, name, is_here=not ray.address)
        scaling = ScalingSettings(**self._section("scaling", sections["scaling"], _SCALING))
        return PoolSettings(**found, ray=ray, members=members, scaling=scaling, static=static)

    def _members(
        self, content: Any, quotas: Mapping[str, int], name: str, *, is_here: bool
    ) -> MemberSettings:
        found = self._section("members", content, _MEMBERS)
        root = cache_root()
        usual = f"{root}-pool-{name}" if is_here and root else _NO_STORE
        store = found.get("store", usual)
        found["store"] = "" if store == _NO_STORE else store
        members = MemberSettings(**found)
        if members.least > members.most:
            raise self._wrong("members", "min", f"at most max, which is {members.most}")
        if not members.least <= members.count <= members.most:
            limits = f"from {members.least} (min) to {members.most} (max)"
            raise self._wrong("members", "count", f"{limits}, and is {members.count}")
        if quotas.get(_DISK_BYTES, members.most) < members.most:
            raise self._wrong("quotas", "disk_bytes", f"at least members.max, {members.most}")
        parts = {name: _part(name, limit, members.most) for name, limit in quotas.items()}
        shares = [word for name, part in parts.items() for word in (f"--{name}", part)]
        return MemberSettings(**{**found, "arguments": (*shares, *members.arguments)})

    def _static(self, rows: Any) -> dict[str, tuple[str, ...]]:
        if not isinstance(rows, list):
            raise self._wrong("", "static", "written as [[static]]")
        members = [self._section("static", row, _STATIC) for row in rows]
        if any(each.keys() != _STATIC.keys() for each in members):
            raise self._wrong("static", "name", "given, and addresses as well")
        found = {each["name"]: each["addresses"] for each in members}
        if len(found) < len(members):
            raise self._wrong("static", "name", "different in each")
        return found

    def _section(self, section: str, content: Any, known: Mapping[str, _Setting]) -> dict[str, Any]:
        if not isinstance(content, dict):
            raise self._wrong("", section, f"a section, written as [{section}]")
        found = {}
        for name, value in content.items():
            if name not in known:
                options = ", ".join([*known, *([] if section else _HEADS)])
                raise ConfigurationError(
                    f"{self._path}: {_place(section, name)} is not a setting; remove it (known: "
                    f"{options})."
                )
            field_name, read, wanted = known[name]
            try:
                found[field_name or name] = read(value)
            except (ConfigurationError, TypeError, ValueError) as error:
                raise self._wrong(section, name, wanted) from error
        return found

    def _wrong(self, section: str, name: str, wanted: str) -> ConfigurationError:
        return ConfigurationError(f"{self._path}: {_place(section, name)} must be {wanted}.")


def _part(option: str, limit: int, members: int) -> str:
    """What one of so many members has of a limit: all of them together have no more."""
    if option == _DISK_BYTES:
        return str(limit // members)
    return str(limit * 1_000_000 // members / 1_000_000)  # seconds


def _place(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


# what a setting may be ----------------------------------------------------------------------------

_Setting = tuple[str, Callable[[Any], Any], str]
"""The name of the field, empty: that of the setting; what reads it; and what it must be."""


def _typed(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(kind.__name__)
    return value


_text: Final = partial(_typed, str)


def _count(least: int, value: Any) -> int:
    number: int = _typed(int, value)
    if not least <= number <= _MOST_MEMBERS:
        raise ValueError(value)
    return number


def _limit(value: Any) -> int:
    number: int = _typed(int, value)
    if number <= 0:
        raise ValueError(value)
    return number


def _above_zero(value: Any) -> float:
    if type(value) not in {int, float} or not 0 < value < 1e9:
        raise ValueError(value)
    return float(value)


def _word(value: Any) -> str:
    if not _NAME.fullmatch(_text(value)):
        raise ValueError(value)
    return str(value)


def _platform(value: Any) -> str:
    if value not in PLATFORMS:
        raise ValueError(value)
    return str(value)


def _path(value: Any) -> str:
    found: str = os.path.expanduser(_text(value))
    if found != _NO_STORE and not os.path.isabs(found):  # members may be in other folders
        raise ValueError(value)
    return found


def _tls(value: Any) -> Address:
    address = Address.parse(_text(value))
    if address.kind != "tls" or address.pin:
        raise ValueError(value)
    return address


def _ports(value: Any) -> tuple[int, int]:
    first, _, last = _text(value).partition("-")
    found = int(first), int(last)
    if not 0 < found[0] <= found[1] < 65536:
        raise ValueError(value)
    return found


def _host_and_port(value: Any) -> str:
    host, _, port = _text(value).rpartition(":")
    if not host or not 0 < int(port) < 65536:
        raise ValueError(value)
    Address.parse(f"tcp://{value}")
    return str(value)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, _typed(list, value)))


def _addresses(value: Any) -> tuple[str, ...]:
    found = _texts(value)
    if not found or any(Address.parse(each).kind not in ("unix", "tls") for each in found):
        raise ValueError(value)
    return found


def _table(read: Callable[[Any], Any], value: Any) -> dict[str, Any]:
    return {name: read(each) for name, each in _typed(dict, value).items()}


_COUNT: Final = partial(_count, 1)
_ANY_COUNT: Final = partial(_count, 0)
_NUMBER: Final = "a whole number above zero"
_LETTERS: Final = "up to 31 letters, digits and . _ -, beginning with a letter or digit"

_TOP: Final[Mapping[str, _Setting]] = {
    "name": ("", _word, _LETTERS),
    "listen": ("", _tls, "a tls:// address without a pin, such as tls://0.0.0.0:18861"),
    "advertise": ("", _text, "the name of this machine"),
}
_RAY: Final[Mapping[str, _Setting]] = {
    "address": ("", _host_and_port, "HOST:PORT of a Ray cluster"),
    "token_file": ("", _path, "an absolute path"),
    "node_address": ("", _text, "an address of this machine"),
    "cpus": ("", _ANY_COUNT, "a whole number"),
    "gpus": ("", _ANY_COUNT, "a whole number"),
}
_MEMBERS: Final[Mapping[str, _Setting]] = {
    "count": ("", _ANY_COUNT, "a whole number"),
    "min": ("least", _ANY_COUNT, "a whole number"),
    "max": ("most", _COUNT, _NUMBER),
    "devices": ("", _COUNT, _NUMBER),
    "platform": ("", _platform, "cpu, gpu or tpu"),
    "resources": ("", partial(_table, float), "a table of numbers, by Ray's names"),
    "version": ("", _word, _LETTERS),
    "python": ("", _path, "an absolute path"),
    "store": ("", _path, 'an absolute path that all members see, or "none"'),
    "ports": ("", _ports, 'first and last port, such as "18870-18899"'),
    "arguments": ("", _texts, "a list of texts"),
    "environment": ("", partial(_table, _text), "a table of texts"),
}
_DISK_BYTES: Final = "principal-disk-bytes"
_QUOTAS: Final[Mapping[str, _Setting]] = {
    "build_s": ("principal-build-s", _limit, "whole seconds above zero"),
    "disk_bytes": (_DISK_BYTES, _limit, "a number of bytes above zero"),
}
_SCALING: Final[Mapping[str, _Setting]] = {
    "busy": ("", _above_zero, "a number above zero"),
    "up_s": ("", _above_zero, "seconds"),
    "down_s": ("", _above_zero, "seconds"),
}
_STATIC: Final[Mapping[str, _Setting]] = {
    "name": ("", _word, _LETTERS),
    "addresses": ("", _addresses, "a list of unix:// and tls:// addresses"),
}
_PARTS: Final = ("ray", "members", "quotas", "scaling")
_SECTIONS: Final = frozenset({*_PARTS, "static"})
_HEADS: Final = (*(f"[{name}]" for name in _PARTS), "[[static]]")
