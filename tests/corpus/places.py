"""Where the corpus lies: outside of the source tree, in the folder that `CORPUS_DIR` names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.live_server import ROOT

PLUGINS = Path(__file__).parent / "plugins"
"""Plugins of pytest for the suites of others."""


class MissingError(Exception):
    """Something is not there that a row needs; the message says how to get it."""


@dataclass(frozen=True)
class Project:
    """Somebody's project, at one version.

    Attributes:
        name: as people call it.
        packages: what it needs beside what `make test` installs: `name==version`.
        repository: `owner/name` on GitHub, where its files are run from a checkout.
        commit: of the repository.
    """

    name: str
    packages: tuple[str, ...] = ()
    repository: str = ""
    commit: str = ""

    @property
    def version(self) -> str:
        """What was run."""
        if self.repository:
            return self.commit.removeprefix("refs/tags/")[:12]
        return " ".join(self.packages[:1]).replace("==", " ")


class Kept:
    """What is known of a row of the corpus from earlier runs.

    Args:
        file: where it is kept.
        kind: of what is kept.
        row: a program or a suite.

    Attributes:
        runs: by name.
    """

    def __init__(self, file: Path, kind: str, row: Any) -> None:
        self._file = file
        self._kind = kind
        self._row = row
        found = json.loads(file.read_text()) if file.exists() else {}
        self.runs: dict[str, Any] = found.get("runs", {}) if found.get("row") == repr(row) else {}

    def save(self, found: dict[str, Any]) -> None:
        """Keeps the runs, and what is reported of them."""
        about = {
            "kind": self._kind,
            "row": repr(self._row),
            "project": self._row.project.name,
            "version": self._row.project.version,
            "title": self._row.title,
            "note": getattr(self._row, "note", ""),
        }
        self._file.write_text(json.dumps({**about, "runs": self.runs, "summary": found}))


class Corpus:
    """The folder of the corpus: checkouts, environments and results.

    Args:
        directory: made when it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.results = directory / "results"
        self.home = directory / "home"
        for folder in (self.results, self.home):
            folder.mkdir(parents=True, exist_ok=True)

    def kept(self, kind: str, row: Any, what: str = "") -> Kept:
        """What is known of a row from earlier runs.

        Args:
            kind: of what is kept of it.
            row: a program or a suite; what was found with another one is forgotten.
            what: which of several runs of that kind.
        """
        name = f"{kind}-{row.project.name}-{row.title}{what}.json".replace("/", "+")
        return Kept(self.results / name, kind, row)

    def checkout(self, project: Project) -> Path:
        """The files of its commit, out of a clone in `repositories/owner+name`.

        Raises:
            MissingError: when there is no such clone, or the commit is not in it.
        """
        name = project.repository.replace("/", "+")
        files = self.directory / "checkouts" / f"{name}@{project.commit.rpartition('/')[2][:12]}"
        if files.is_dir():
            return files
        clone = self.directory / "repositories" / name
        if not clone.is_dir():
            raise MissingError(
                f"no clone of github.com/{project.repository} in CORPUS_DIR/repositories/{name}"
            )
        partial = files.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        git_directory = clone / ".git" if (clone / ".git").exists() else clone
        if not _write_files(git_directory, project.commit, partial):
            raise MissingError(f"{project.commit[:12]} is not in the clone {name}")
        partial.rename(files)
        return files

    def python(self, project: Project) -> Path:
        """An interpreter that has its packages, and all that this process has.

        Raises:
            MissingError: when a package cannot be installed.
        """
        if not project.packages:
            return Path(sys.executable)
        text = "\n".join((sys.prefix, sys.version, *project.packages))
        folder = (
            self.directory
            / "environments"
            / f"{project.name.replace(' ', '-')}-{sha256(text.encode()).hexdigest()[:8]}"
        )
        python = folder / "bin" / "python"
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=False, symlinks=True)
            below = next(Path(folder).glob("lib/python3*/site-packages"))
            (below / "zz_of_the_runner.pth").write_text(_site_packages() + "\n")
            self._install(python, project)
            (folder / ".complete").touch()
        return python

    def _install(self, python: Path, project: Project) -> None:
        command = [str(python), "-m", "pip", "install", "-qq", "--no-compile", "--prefer-binary"]
        constraints = python.parent.parent / "constraints.txt"
        constraints.write_text(_constraints_but(project.packages))
        command += ["-c", str(constraints)]
        done = subprocess.run(
            [*command, *project.packages], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise MissingError(f"pip install: {done.stderr.strip().splitlines()[-1][:200]}")


def _constraints_but(packages: tuple[str, ...]) -> str:
    """Our own constraints, without those for packages that a project has in another version."""
    own = {package.partition("==")[0].lower() for package in packages}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "\n".join(line for line in lines if line.partition("==")[0].lower() not in own) + "\n"


def _site_packages() -> str:
    import sysconfig

    return sysconfig.get_paths()["purelib"]


def _write_files(git_directory: Path, commit: str, folder: Path) -> bool:
    """Writes the files of a commit, without those that the clone has left out, such as videos.

    Returns:
        Whether the commit is there.
    """
    git = ["git", f"--git-dir={git_directory}"]
    listed = subprocess.run([*git, "ls-tree", "-rz", commit], capture_output=True, check=False)
    entries = [entry.split("\t", 1) for entry in listed.stdout.decode().split("\0") if entry]
    names = "".join(f"{facts.split()[2]}\n" for facts, _ in entries).encode()
    batch = subprocess.run(
        [*git, "cat-file", "--batch"], input=names, capture_output=True, check=False
    )
    contents = BytesIO(batch.stdout)
    for facts, name in entries:
        header = contents.readline().split()
        if len(header) == 3:  # else it is missing
            content = contents.read(int(header[2]))
            contents.read(1)
            if facts.startswith("100"):  # a file, and no link
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
    return bool(entries)


def corpus_directory() -> Path:
    """The folder that `CORPUS_DIR` names, or one in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("CORPUS_DIR") or Path(cache) / "jaxd-corpus").resolve()
