"""Writes docker/locks: what the images install, each package with the SHA-256 of its files.

    make locks

after a change of constraints.txt or of the dependencies in pyproject.toml. It asks the pip of one
interpreter for each minor version (`LOCK_PYTHONS`) what it would install, for both kinds of
processors, which downloads some gigabytes and keeps none of them. The lines name neither an index
nor an address: where a package comes from does not matter when its hash is right.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "docker" / "locks"
IMAGES = ("cpu", "cuda12", "cuda13", "tpu", "build")
GLIBC = range(17, 36)  # of the wheels; that of the base image is newer
HEAD = "# Written by docker/lock.py (make locks) from pyproject.toml and constraints.txt.\n"

Found = dict[tuple[str, str], tuple[set[str], set[str]]]
"""By name and version: the Pythons that get it, and the hashes of its files."""


def requirements(pyproject: str, image: str) -> list[str]:
    """What a lock file is for, as lines for pip; jaxd itself is built from this checkout.

    Args:
        pyproject: the text of pyproject.toml.
        image: `cpu`, or an extra of the project: `cuda12`, `cuda13`, `tpu`: the client's and the
            server's packages, and jax's plugin; `build`: what builds jaxd.

    Raises:
        KeyError: when there is no such extra.
    """
    text = tomllib.loads(pyproject)
    if image == "build":
        return list(text["build-system"]["requires"])
    extras = text["project"]["optional-dependencies"]
    plugin = [] if image == "cpu" else extras[image]
    return [*text["project"]["dependencies"], *extras["server"], *plugin]


def resolved(python: str, machine: str, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Name, version and SHA-256 of what the pip of an interpreter would install.

    Raises:
        CalledProcessError: when pip finds no such packages; it has said why.
    """
    tags = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC]
    tags += [f"manylinux2014_{machine}", f"linux_{machine}"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--only-binary", ":all:", "-c", "constraints.txt", "--report", str(report)]
        command += ["--target", folder]  # which older pips ask for, and nothing is written to
        command += [word for tag in tags for word in ("--platform", tag)]
        subprocess.run([*command, *lines], cwd=ROOT, check=True)
        for one in json.loads(report.read_text())["install"]:
            data = one["metadata"]
            digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
            yield data["name"].lower().replace("_", "-"), data["version"], digest


def lock(found: Mapping[tuple[str, str], tuple[set[str], set[str]]], pythons: set[str]) -> str:
    """The text of a lock file, sorted; a package that not every Python gets says which do."""
    lines = [HEAD]
    for (name, version), (minors, digests) in sorted(found.items()):
        markers = " or ".join(f'python_version == "{minor}"' for minor in sorted(minors))
        marker = f" ; {markers}" if minors != pythons else ""
        hashes = " \\\n    ".join(f"--hash=sha256:{digest}" for digest in sorted(digests))
        lines.append(f"{name}=={version}{marker} \\\n    {hashes}\n")
    return "".join(lines)


def main(interpreters: list[str]) -> None:
    """Writes all of them."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = {name: requirements(text, name) for name in IMAGES}
    minor = ["-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    pythons = {
        subprocess.run(
            [path, *minor], capture_output=True, text=True, check=True
        ).stdout.strip(): path
        for path in interpreters
    }
    for name, lines in wanted.items():
        found: Found = {}
        for machine in ("x86_64",) if name == "tpu" else ("x86_64", "aarch64"):
            for version, path in pythons.items():
                for package, release, digest in resolved(path, machine, lines):
                    minors, digests = found.setdefault((package, release), (set(), set()))
                    minors.add(version)
                    digests.add(digest)
        (LOCKS / f"{name}.txt").write_text(lock(found, set(pythons)), encoding="utf-8")
        sys.stdout.write(f"{name}: {len(found)} packages\n")


if __name__ == "__main__":
    main(sys.argv[1:])
