"""A file of recipes: what `jaxd warm --record` writes and `jaxd warm` builds.

    magic with the protocol's version | BLAKE2b of what follows, 16 bytes | zlib of one literal

Data only. The client never unpacks the code in it; a server does, when it builds it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from jaxd.cli.query import writing
from jaxd_protocol import PROTOCOL_VERSION
from jaxd_protocol.errors import ConfigurationError, ProtocolError
from jaxd_protocol.messages.recipes import Recipe, RecordedCall
from jaxd_protocol.pytree.literals import dump_literal, load_literal

_NAME: Final = b"jaxd lockfile "
_MAGIC: Final = b"%s%d\n" % (_NAME, PROTOCOL_VERSION)
_DIGEST_BYTES: Final = 16


def write_lockfile(path: str, recipes: Sequence[Recipe]) -> None:
    """Writes a lockfile whole, or leaves what was there.

    The same recipes, in whatever order, give the same bytes.

    Raises:
        ConfigurationError: when it cannot be written.
    """
    body = zlib.compress(dump_literal(_content(recipes)), 9)
    with _draft(path) as draft:
        with open(draft, "xb") as file:
            file.write(_MAGIC + _digest(body) + body)
        os.replace(draft, path)


def check_writable(path: str) -> None:
    """Returns when a lockfile can be written there: checked before, and not after, a long run.

    Raises:
        ConfigurationError: when it cannot.
    """
    with _draft(path) as draft, open(draft, "xb"):
        pass


def read_lockfile(path: str) -> list[Recipe]:
    """The recipes in a lockfile.

    Raises:
        ConfigurationError: when it cannot be read, is no lockfile or a damaged one, or was made
            with another version of Python, whose code a server with this one cannot run.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}. Record one: jaxd warm --record {path}"
        ) from error
    python, recipes = _verified(path, data)
    if python != _python():
        raise ConfigurationError(
            f"{path} was recorded with Python {python}, and this is Python {_python()}. Record it "
            f"again with this one, or run this with Python {python}."
        )
    return recipes


@contextmanager
def _draft(path: str) -> Iterator[str]:
    """The path of a temporary file in the folder of `path`, which is removed if it is left there.

    Raises:
        ConfigurationError: when a file cannot be written.
    """
    draft = f"{path}.{os.getpid()}.new"
    try:
        with writing(path):
            if os.path.isdir(path):
                raise IsADirectoryError(0, "it is a folder")
            yield draft
    finally:
        with suppress(OSError):
            os.unlink(draft)


def _content(recipes: Sequence[Recipe]) -> tuple[Any, ...]:
    ordered = sorted(recipes, key=lambda recipe: (recipe.name, recipe.key))
    codes = {_digest(recipe.code): recipe.code for recipe in ordered}  # shared by several options
    return _python(), tuple(sorted(codes.items())), tuple(map(_fields, ordered))


def _fields(recipe: Recipe) -> tuple[Any, ...]:
    calls = tuple(map(tuple, sorted(recipe.calls)))
    return (*recipe[:4], _digest(recipe.code), calls, recipe.parameters)


def _verified(path: str, data: bytes) -> tuple[str, list[Recipe]]:
    """Python's version and the recipes in the content of a lockfile."""
    if not data.startswith(_NAME):
        raise ConfigurationError(f"{path} is no lockfile. Record one: jaxd warm --record {path}")
    if not data.startswith(_MAGIC):
        raise ConfigurationError(
            f"{path} was recorded with another version of jaxd. Record it again: "
            f"jaxd warm --record {path}"
        )
    body = data[len(_MAGIC) + _DIGEST_BYTES :]
    if data[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES] != _digest(body):
        raise _damaged(path)
    try:
        (python, codes, listed), _ = load_literal(zlib.decompress(body), 0)
        found = dict(codes)
        return python, [_recipe(found, *each) for each in listed]
    except (zlib.error, ProtocolError, LookupError, TypeError, ValueError) as error:
        raise _damaged(path) from error


def _recipe(codes: dict[bytes, bytes], *fields: Any) -> Recipe:
    name, key, options, manifest, code, calls, parameters = fields
    read = [RecordedCall(*call) for call in calls]
    for call in read:
        call.check()
    return Recipe(name, key, options, manifest, codes[code], tuple(read), parameters)


def _python() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _damaged(path: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is damaged: its content is not what its checksum says. Fetch it again, in binary "
        f"form, or record it again: jaxd warm --record {path}"
    )
