"""`make dist`: builds the wheel and the sdist, checks them, and tries them in clean environments.

python -m tests.documents.distribution [PYTHON ...]

The wheel is built from the sdist, so what the sdist lacks the wheel lacks. Each is installed with
the versions of constraints.txt; then the first example of README.md runs twice, on a server that
its first call starts from what is installed. Nothing of the checkout, of the user's cache or of a
running server is used: each environment has a folder of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.documents.blocks import ROOT, blocks_of

DIST: Final = ROOT / "dist"
_MINORS: Final = ("3.11", "3.12", "3.13")
_PLACES: Final = (
    "{home}/.pyenv/versions/{minor}.*/bin/python3",
    "/usr/local/bin/python{minor}",
    "/usr/bin/python{minor}",
)
_CAN_MAKE_ENVIRONMENTS: Final = "import sys, venv, ensurepip; print(*sys.version_info[:2], sep='.')"


def main(arguments: Sequence[str]) -> int:
    """Builds, checks and tries; 0, or raises where something fails."""
    wheel, sdist = _build()
    first, *others = arguments or _pythons()
    tries = [(first, wheel, sdist), *((python, wheel) for python in others)]
    with ThreadPoolExecutor(2) as pool:
        for said in pool.map(lambda one: _try(*one), tries):
            print(said)
    print(f"{wheel.relative_to(ROOT)} and {sdist.relative_to(ROOT)} are good")
    return 0


def _build() -> tuple[Path, Path]:
    for old in [*DIST.glob("jaxd-*.whl"), *DIST.glob("jaxd-*.tar.gz")]:
        old.unlink()
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(ROOT))
    (wheel,), (sdist,) = DIST.glob("jaxd-*.whl"), DIST.glob("jaxd-*.tar.gz")
    _run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    return wheel, sdist


def _pythons() -> Iterator[str]:
    """One interpreter of each minor version that is supported, as far as they are here."""
    first = ".".join(map(str, sys.version_info[:2]))
    yield sys.executable
    for minor in _MINORS:
        if minor != first:
            python = next(filter(None, map(_usable, _candidates(minor))), None)
            if python is None:
                print(f"no Python {minor} here: not tried on it")
            else:
                yield python


def _candidates(minor: str) -> Iterator[Path]:
    for place in _PLACES:
        pattern = place.format(home=Path.home(), minor=minor)
        yield from sorted(Path("/").glob(pattern.lstrip("/")))


def _usable(python: Path) -> str | None:
    asked = subprocess.run(
        [python, "-c", _CAN_MAKE_ENVIRONMENTS], capture_output=True, text=True, check=False
    )
    return str(python) if asked.stdout.strip() in _MINORS else None


def _try(python: str, wheel: Path, *instead: Path) -> str:
    """Installs the wheel in a new environment and makes a first call, then what is `instead`."""
    with tempfile.TemporaryDirectory(prefix="jaxd-", dir="/tmp") as made:  # short, for sockets
        folder = Path(made)
        _run(python, "-m", "venv", str(folder / "venv"))
        own = str(folder / "venv" / "bin" / "python")
        pip = (own, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile")
        _run(*pip, "-c", str(ROOT / "constraints.txt"), f"{wheel}[server]")
        said = [_run(own, "-V").strip(), wheel.name, _called(own, folder)]
        for other in instead:
            _run(*pip, "--no-deps", "--force-reinstall", str(other))
            said += [other.name, _called(own, folder)]
    return ", ".join(said)


def _called(python: str, folder: Path) -> str:
    """What the first example says twice: one process starts a server, the next one finds it."""
    environment = _environment(folder)
    program = folder / "first.py"
    program.write_text(blocks_of("README.md")[_first_example()].text)
    try:
        said = [_run(python, str(program), environment=environment) for _ in range(2)]
    finally:
        stop = (python, "-m", "jaxd.cli", "stop")
        subprocess.run(stop, env=environment, cwd="/", capture_output=True, check=False)
    assert said[0] == said[1] != "", said
    return f"answers {' '.join(said[0].split())}"


def _first_example() -> int:
    languages = [block.language for block in blocks_of("README.md")]
    return languages.index("python")


def _environment(folder: Path) -> dict[str, str]:
    """That of a user who has nothing of jaxd yet."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    home = {name: str(folder) for name in ("HOME", "XDG_RUNTIME_DIR")}
    return kept | home | {"XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}


def _run(*command: str, environment: dict[str, str] | None = None) -> str:
    """What it prints; where it fails, what it said comes first."""
    done = subprocess.run(
        command, env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        raise SystemExit(f"failed with {done.returncode}: {' '.join(command)}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
