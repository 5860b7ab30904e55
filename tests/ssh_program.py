"""A program named ssh that does what ssh does, on this machine: runs a command line in a shell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


_PROGRAM = """\
#!{python}
import json, os, sys
log, words = {log!r}, sys.argv[1:]
at = words.index("--")
call = {{"pid": os.getpid(), "options": words[:at], "host": words[at + 1]}}
with open(log, "a") as file:
    file.write(json.dumps(call) + "\\n")
{behaviour}
os.execv("/bin/sh", ["sh", "-c", words[at + 2]])
"""


def install_ssh(folder: Path, patch: pytest.MonkeyPatch, behaviour: str = "") -> Path:
    """Puts it first on the PATH; returns the file in which it notes its options, a line each.

    Args:
        folder: for its files.
        patch: undone with the test.
        behaviour: a line of Python that it runs first.
    """
    programs, log = folder / "programs", folder / "ssh.log"
    programs.mkdir(exist_ok=True)
    ssh = programs / "ssh"
    text = _PROGRAM.format(python=sys.executable, log=str(log), behaviour=behaviour)
    ssh.write_text(text)
    ssh.chmod(0o755)
    (programs / "python3").symlink_to(sys.executable)
    patch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return log
