"""Parsers of the values of command line options."""

from __future__ import annotations

import argparse
import math
import os
import pwd
import re
from collections.abc import Callable

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address

SAME_USER = (0, 0)
"""A value of `worker_uids`: all workers run as the server's own user."""

_NO_USER = (1 << 32) - 1
"""The uid that means *unchanged* for system calls."""

_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_address(text: str) -> Address:
    """An address for a server to listen on.

    Raises:
        argparse.ArgumentTypeError: when it is not an address, or one for clients only.
    """
    try:
        address = Address.parse(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from error
    is_for_clients = address.is_pool or address.uid is not None
    if address.kind == "ssh" or address.pin or address.insecure or is_for_clients:
        raise argparse.ArgumentTypeError(
            f"{text!r} is an address for clients; listen on the Unix socket for ssh://, on "
            "tls://host:port without a fingerprint, and without ?insecure=1 or ?uid="
        )
    return address


def parse_endpoint(text: str) -> str:
    """`HOST:PORT`, where something else than a jaxd server listens.

    Raises:
        argparse.ArgumentTypeError: for any other text.
    """
    host, _, port = text.rpartition(":")
    if not host or {"?", " "} & set(text) or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    try:
        Address.parse(f"tcp://{text}")
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT") from error
    return text


def parse_name(text: str) -> str:
    """`HOST` or `HOST:PORT`, the name of a server for clients on other machines.

    Raises:
        argparse.ArgumentTypeError: for any other text.
    """
    try:
        Address.parse(f"tls://{text}")
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST or HOST:PORT") from error
    return text


def parse_user(text: str) -> int:
    """The uid of a user of this machine, from a name or a number.

    Raises:
        argparse.ArgumentTypeError: when no user has that name.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"there is no user {text!r} on this machine") from error


def parse_users(text: str) -> tuple[int, int]:
    """The first and the last of a range of uids without that of root; or `none`.

    The range has two at least, since the server needs one for itself.

    Raises:
        argparse.ArgumentTypeError: for any other text.
    """
    if text == "none":
        return SAME_USER
    match = re.fullmatch(r"(\d{1,10})-(\d{1,10})", text.strip(), re.ASCII)
    if not match or not 0 < int(match[1]) < int(match[2]) < _NO_USER:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of users such as 70000-70099")
    return int(match[1]), int(match[2])


def parse_folder(text: str) -> str:
    """An absolute path, since the worker may run in another folder; or `none`."""
    return text if text == "none" else os.path.abspath(os.path.expanduser(text))


def parse_store(text: str) -> str:
    """As `parse_folder`, or a URL such as `s3://bucket/jaxd`."""
    return text if "://" in text else parse_folder(text)


def parse_size(text: str) -> int:
    """The bytes of a size such as `4096`, `512M` or `8GiB`.

    Raises:
        argparse.ArgumentTypeError: for any other text.
    """
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:iB|B)?", text.strip())
    if not match or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4096, 512M or 8GiB")
    return int(match[1]) * _SUFFIXES[match[2]]


def parse_size_or_0(text: str) -> int:
    """As `parse_size`; 0 is none.

    Raises:
        argparse.ArgumentTypeError: for any other text.
    """
    return 0 if text.strip() == "0" else parse_size(text)


def parse_gpus(text: str) -> str:
    """Numbers or UUIDs of GPUs, separated by commas.

    Raises:
        argparse.ArgumentTypeError: for any other text, or when one is there twice.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(re.fullmatch(r"\d+|(GPU|MIG)-[0-9a-zA-Z/-]+", name) for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of GPUs such as 0,1")
    if len(set(names)) < len(names):  # CUDA would use none from the second one on
        raise argparse.ArgumentTypeError(f"{text!r} names a GPU twice")
    return ",".join(names)


def parse_count(text: str) -> int:
    """A number of at least 1.

    Raises:
        argparse.ArgumentTypeError: for any other text.
    """
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def parse_share(text: str) -> float:
    """A number above 0, and at most 1.

    Raises:
        argparse.ArgumentTypeError: for any other text.
    """
    return _number(text, "a share such as 0.5", lambda share: 0 < share <= 1)


def parse_seconds(text: str) -> float:
    """A number of seconds, which may be 0.

    Raises:
        argparse.ArgumentTypeError: for any other text.
    """
    return _number(text, "a number of seconds", lambda seconds: 0 <= seconds < math.inf)


def _number(text: str, what: str, is_valid: Callable[[float], bool]) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not is_valid(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return number
