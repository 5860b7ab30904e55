"""Whether two processes run on one machine, whatever container and network lies between them."""

from __future__ import annotations

import hashlib

_BOOT = "/proc/sys/kernel/random/boot_id"


def machine_id() -> str | None:
    """A name of the kernel that runs this process, new at each boot; None where there is none.

    For convenience, not for trust: whoever has seen it can say it.
    """
    try:
        with open(_BOOT, "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=8, person=b"jaxd").hexdigest()
    except OSError:
        return None
