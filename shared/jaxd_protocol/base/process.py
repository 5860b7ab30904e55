"""State of one process: forks, threads, lazily made objects, facts, the machine's id, a folder.

The child of a fork drops its parent's connections: both would otherwise read from one socket, and
the exit of the child would close that of the parent. Shared memory stays mapped in both.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from jaxd_protocol.errors import Busy


class ForkAware(Protocol):
    """An object whose state belongs to one process."""

    def after_fork(self) -> None:
        """Called in the child: resets the state without touching the parent's resources."""


class ForkShared(Protocol):
    """An object whose memory a child shares."""

    def on_fork(self) -> None:
        """Called in the parent, before and after: the child shares what is mapped now."""


_fork_shared: weakref.WeakSet[ForkShared] = weakref.WeakSet()
_fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def reset_after_fork(thing: ForkAware) -> None:
    """Registers an object whose `after_fork` every child of this process calls; held weakly."""
    _fork_aware.add(thing)


def notify_before_forks(thing: ForkShared) -> None:
    """Registers an object whose `on_fork` this process calls at every fork; held weakly."""
    _fork_shared.add(thing)


def _in_parent() -> None:
    for thing in list(_fork_shared):
        thing.on_fork()


def _in_child() -> None:
    for thing in list(_fork_aware):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    # before, for what another thread gives back meanwhile; after, for what it has taken
    os.register_at_fork(before=_in_parent, after_in_parent=_in_parent, after_in_child=_in_child)


T = TypeVar("T")


class Lazy(Generic[T]):
    """Makes one object at the first call and always returns that. Thread-safe, without a lock.

    Args:
        make: makes it. Threads that call at the same moment may each make one, of which only
            the first is ever returned.

    Attributes:
        made: the object; None before the first call.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._first: dict[None, T] = {}
        self.made: T | None = None

    def __call__(self) -> T:
        """The object."""
        if self.made is None:
            self.made = self._first.setdefault(None, self._make())
        return self.made


class PerProcess(Generic[T]):
    """One object for each process, such as a lock: the child of a fork has another one.

    A thread of the parent may have held the lock, and is not in the child to release it.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Makes another one, in the child of a fork."""
        self._own = self._make()

    def __call__(self) -> T:
        """That of this process."""
        return self._own


class IdentityMemo(Generic[T]):
    """Facts about objects that need no hash, each kept while its object lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], T]] = {}

    def get(self, thing: object) -> T | None:
        """What is kept about this very object; None when nothing is."""
        known = self._known.get(id(thing))
        return known[1] if known is not None and known[0]() is thing else None

    def put(self, thing: object, fact: T) -> T:
        """Keeps a fact, and returns it."""
        name = id(thing)
        self._known[name] = weakref.ref(thing, partial(self._forget, name)), fact
        return fact

    def _forget(self, name: int, gone: weakref.ref[Any]) -> None:
        known = self._known.get(name)
        if known is not None and known[0] is gone:  # else another one has its id now
            del self._known[name]


_BOOT = "/proc/sys/kernel/random/boot_id"


def machine_id() -> str | None:
    """A name of the kernel that runs this process, new at each boot; None where there is none.

    No proof of identity: every process that has read it can send it.
    """
    try:
        with open(_BOOT, "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=8, person=b"jaxd").hexdigest()
    except OSError:
        return None


def clock_id() -> str | None:
    """A name of the clock that `time.monotonic` reads: processes that share it read the same time.

    That is the kernel and the time namespace of this process; None where neither is known.
    """
    machine = machine_id()
    try:
        return machine and f"{machine} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return machine


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread.

    Raises:
        Busy: when the system has none for this process; names the limits.
        RuntimeError: when the process is ending.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise Busy(
            f"process {os.getpid()} can start no new thread: its user may have {_user_threads()} "
            f"threads and processes (ulimit -u), its control group {_group_threads()} (pids.max; "
            "TasksMax= of a systemd unit, --pids-limit of a container), or there is no memory for "
            "its stack. Raise the limit where that process runs, or have it do less at a time."
        ) from error


def start_daemon(name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
    """Starts a thread that does not outlive the process; returns it.

    Args:
        name: of the thread.
        target: runs in it.
        args: of `target`.

    Raises:
        Busy, RuntimeError: as `start_thread`.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    start_thread(thread)
    return thread


def _user_threads() -> str:
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    except (ImportError, AttributeError):  # not on this system
        return "an unknown number of"
    return "any number of" if limit == resource.RLIM_INFINITY else str(limit)


def _group_threads(own: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> str:
    with suppress(OSError, ValueError):
        with open(own, encoding="ascii") as file:
            lines = [line.rstrip().split(":", 2) for line in file]
        for _, controllers, path in lines:
            base = {"": root, "pids": f"{root}/pids"}.get(controllers)
            for folder in (f"{base}{path}", base) if base else ():
                with suppress(OSError), open(f"{folder}/pids.max", encoding="ascii") as file:
                    return file.read().strip()
    return "an unknown number"


def memory_bytes() -> int:
    """How much memory the machine has; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def usable_processors() -> int:
    """Those that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_ATTEMPTS = 4


class OwnFolder:
    """A folder that goes with this process.

    It is locked as long as the process lives: what one leaves that was killed is removed by the
    next one of the same user.

    Args:
        prefix: its name begins so.
        parent: where it lies; None: where temporary files do.

    Attributes:
        path: where it is.

    Raises:
        OSError: when it cannot be made.
    """

    def __init__(self, prefix: str, parent: str | None = None) -> None:
        import atexit
        import glob
        import tempfile

        parent, prefix = parent or tempfile.gettempdir(), f"{prefix}-{os.getuid()}-"
        for old in glob.glob(os.path.join(parent, f"{prefix}*")):
            _remove_left(old)
        for _ in range(_ATTEMPTS):  # another process may take it for one that was left
            self.path = tempfile.mkdtemp(prefix=prefix, dir=parent)
            self._lock_file = _locked(self.path)
            if self._lock_file is not None:
                break
        atexit.register(_remove_own, self.path, os.getpid())


def _locked(folder: str) -> int | None:
    """A lock on a folder, as an open file; None where another process has it, or it is not ours."""
    try:
        return lock_or_close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
    except OSError:
        return None


def lock_or_close(file: int) -> int | None:
    """Locks what is open, for this process; None where another one has the lock: it is closed."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def _remove_left(folder: str) -> None:
    """Removes the folder of a process that is gone."""
    import shutil

    file = _locked(folder)
    if file is not None:
        if os.fstat(file).st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
        os.close(file)


def _remove_own(folder: str, pid: int) -> None:
    import shutil

    if os.getpid() == pid:  # and not the child of a fork
        shutil.rmtree(folder, ignore_errors=True)
