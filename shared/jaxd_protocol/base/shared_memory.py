"""Memory that the processes of one machine share: files in memory that cannot shrink.

Such a file has no name. It is passed on as an open descriptor, and it is gone when the last process
that has it open or mapped is gone, however that process ended.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
from contextlib import suppress
from typing import Any, Final

from jaxd_protocol.errors import ProtocolError

_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, since Linux 5.14


def available() -> bool:
    """Whether this system has such files."""
    return hasattr(os, "memfd_create")


def create_sealed(nbytes: int) -> int:
    """A descriptor of a new file of exactly `nbytes` zeros, for good; not inheritable.

    Its memory is taken when it is written.

    Raises:
        OSError: when the system has no such files, or the process may open no more.
    """
    import fcntl

    descriptor = os.memfd_create("jaxd", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create_private(nbytes: int = 0) -> int:
    """A descriptor of a new file without a name, for processes that trust each other.

    In memory where the system has that; not inheritable.

    Raises:
        OSError: when there is no room for it, or the process may open no more.
    """
    if available():
        descriptor = os.memfd_create("jaxd", os.MFD_CLOEXEC)
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_sealed(descriptor: int, nbytes: int) -> None:
    """Returns when a peer's file can be mapped without danger: touching what is cut off kills.

    Raises:
        ProtocolError: when it may still shrink or grow, is smaller than `nbytes`, or is no such
            file at all.
    """
    import fcntl

    needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        status = os.fstat(descriptor)
    except OSError as error:
        raise ProtocolError(f"what the peer shares is not a file in memory: {error}.") from error
    is_plain = stat.S_ISREG(status.st_mode) and status.st_blksize == mmap.PAGESIZE
    if not is_plain or seals & needed != needed:  # huge pages may run out when one is touched
        raise ProtocolError("the peer shares memory that it could take away again.")
    if not 0 < nbytes <= status.st_size:
        raise ProtocolError(
            f"the peer shares {status.st_size:,} bytes of memory, not {nbytes:,} as it announced."
        )


def map_file(descriptor: int, nbytes: int, *, writable: bool) -> memoryview:
    """The first `nbytes` of a file as memory, page-aligned.

    It stays mapped while the view, or anything made of it, exists. The descriptor may be closed.

    Raises:
        OSError: when it cannot be mapped so.
    """
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    options: dict[str, Any] = {"access": access}
    if sys.version_info >= (3, 13):
        options["trackfd"] = False  # else Python keeps the file open as well
    return memoryview(mmap.mmap(descriptor, nbytes, **options))


def write_fresh(descriptor: int, memory: memoryview, offset: int, data: memoryview) -> None:
    """Writes where nothing has been written before; `memory` is all of the file, as mapped.

    By way of the file: a copy into the mapping is stopped at every new page, and takes 44 ms for
    64 MB where this takes 28 ms. The next copy to the same place finds the pages there.

    Raises:
        OSError: when there is not enough memory.
    """
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)
    start = offset - offset % mmap.PAGESIZE
    mapping: Any = memory.obj
    with suppress(OSError):  # an older kernel: the pages are then mapped one by one
        mapping.madvise(_POPULATE_WRITE, start, offset + len(data) - start)
