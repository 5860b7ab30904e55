"""Libraries that are preloaded into processes of the tests, made from their C source."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def has_compiler() -> bool:
    """Whether there is a C compiler here."""
    return shutil.which("cc") is not None


def make_library(folder: Path, name: str, source: str) -> Path:
    """Compiles the source in the folder; for `LD_PRELOAD`."""
    file, library = folder / f"{name}.c", folder / f"{name}.so"
    file.write_text(source)
    command = ["cc", "-shared", "-fPIC", "-O1", str(file), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library
