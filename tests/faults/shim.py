"""Makes the disk of a process slow and its clock jump, by a library that is preloaded."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

import pytest

from tests.preloaded import has_compiler, make_library

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *knobs; /* seconds that the clock is ahead; microseconds for each sync */

__attribute__((constructor)) static void begin(void) {
  int file = open(getenv("SHIM_KNOBS"), O_RDONLY | O_CLOEXEC);
  void *map = file < 0 ? MAP_FAILED : mmap(0, 16, PROT_READ, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  knobs = map == MAP_FAILED ? 0 : map;
}

int clock_gettime(clockid_t id, struct timespec *at) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(id, at);
  if (knobs && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += knobs[0];
  return result;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}

static void drag(void) { if (knobs && knobs[1]) usleep(knobs[1]); }

int fsync(int file) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fsync");
  drag();
  return real(file);
}

int rename(const char *from, const char *to) {
  static int (*real)(const char *, const char *);
  if (!real) real = dlsym(RTLD_NEXT, "rename");
  drag();
  return real(from, to);
}

ssize_t pread(int file, void *to, size_t count, off_t offset) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  if (!real) real = dlsym(RTLD_NEXT, "pread");
  drag();
  return real(file, to, count, offset);
}
"""


class Shim:
    """A preloaded library and the two knobs that it obeys while the process runs.

    Attributes:
        environment: of processes that are to obey.
    """

    def __init__(self, folder: Path) -> None:
        if not has_compiler():
            pytest.skip("no C compiler to make the library with that slows a disk or turns a clock")
        library, knobs = make_library(folder, "shim", _SOURCE), folder / "knobs"
        knobs.write_bytes(bytes(16))
        with knobs.open("r+b") as file:
            self._knobs = mmap.mmap(file.fileno(), 16)
        self.environment = {"LD_PRELOAD": str(library), "SHIM_KNOBS": str(knobs)}

    def set(self, *, ahead_s: int = 0, drag_s: float = 0.0) -> None:
        """Turns the clock by so many seconds, and has each access to the disk take longer."""
        self._knobs[:] = struct.pack("qq", ahead_s, int(drag_s * 1e6))
