"""Parsers of the values of command line options."""

from __future__ import annotations

import argparse
import os
import pwd
import re

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address

SAME_USER = (0, 0)
"""As `worker_uids`: all workers run as the server's own user, whoever that is."""

_NO_USER = (1 << 32) - 1
"""The uid that system calls read as: leave it as it is."""

_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_address(text: str) -> Address:
    """Where a server can listen.

    Raises:
        argparse.ArgumentTypeError: when it is no address, or one for clients only.
    """
    try:
        address = Address.parse(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from error
    if address.kind == "ssh" or address.pin or address.insecure or address.uid is not None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is an address for clients; listen on the Unix socket for ssh://, on "
            "tls://host:port without a fingerprint, and without ?insecure=1 or ?uid="
        )
    return address


def parse_name(text: str) -> str:
    """`HOST` or `HOST:PORT`, as clients elsewhere call a server.

    Raises:
        argparse.ArgumentTypeError: when it is neither.
    """
    try:
        Address.parse(f"tls://{text}")
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST or HOST:PORT") from error
    return text


def parse_user(text: str) -> int:
    """The number of a user of this machine, who is named or numbered.

    Raises:
        argparse.ArgumentTypeError: when there is none of that name.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"there is no user {text!r} on this machine") from error


def parse_users(text: str) -> tuple[int, int]:
    """The first and the last of a range of numbers, none of which is root's; or `none`.

    There are two at least, since the server needs one for itself.

    Raises:
        argparse.ArgumentTypeError: when it is none.
    """
    if text == "none":
        return SAME_USER
    match = re.fullmatch(r"(\d{1,10})-(\d{1,10})", text.strip(), re.ASCII)
    if not match or not 0 < int(match[1]) < int(match[2]) < _NO_USER:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of users such as 70000-70099")
    return int(match[1]), int(match[2])


def parse_folder(text: str) -> str:
    """An absolute path: the worker may run in another folder. `none` stays what it is."""
    return text if text == "none" else os.path.abspath(os.path.expanduser(text))


def parse_size(text: str) -> int:
    """The bytes that a word such as `4096`, `512M` or `8GiB` stands for.

    Raises:
        argparse.ArgumentTypeError: when it is no size.
    """
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:iB|B)?", text.strip())
    if not match or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4096, 512M or 8GiB")
    return int(match[1]) * _SUFFIXES[match[2]]


def parse_gpus(text: str) -> str:
    """Numbers or UUIDs of GPUs, with commas between.

    Raises:
        argparse.ArgumentTypeError: when one is neither, or stands there twice.
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
        argparse.ArgumentTypeError: when it is none.
    """
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def parse_share(text: str) -> float:
    """A number above 0, and at most 1.

    Raises:
        argparse.ArgumentTypeError: when it is none.
    """
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 0.5")
    return share


def parse_seconds(text: str) -> float:
    """A number of seconds, which may be 0.

    Raises:
        argparse.ArgumentTypeError: when it is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
