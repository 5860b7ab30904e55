"""The Python in README.md and docs/ runs as it stands, against a real server."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.documents.blocks import Block, blocks_of, pages
from tests.live_server import LiveServer
from tests.warm_clients import run_warm

_NAMED: Final = re.compile(r"# (\w+\.py)\n")
"""The first line of a block that is a program of its own."""

_LINES_OF_THE_PAGE: Final = """
import doctest

def run(text, page, line):
    if not text.startswith(">>>"):
        exec(compile("\\n" * (line - 1) + text, page, "exec", dont_inherit=True), globals())
        return
    case = doctest.DocTestParser().get_doctest(text, globals(), page, page, line)
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(case, clear_globs=False)
    assert not failed
"""
"""Errors name the line of the page."""

_AS_A_PROGRAM: Final = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"


def _python_of(page: str) -> list[Block]:
    return [b for b in blocks_of(page) if b.language == "python" and not b.reason]


def _name(block: Block) -> str:
    """The name of the program that the block is, if it is one."""
    named = _NAMED.match(block.text)
    return named[1] if named else ""


def _shared(page: str) -> list[Block]:
    """The blocks of a page that follow one another, as the cells of a notebook do."""
    return [block for block in _python_of(page) if not _name(block)]


def _program(blocks: list[Block]) -> str:
    calls = [f"run({block.text!r}, {block.page!r}, {block.line})" for block in blocks]
    return "\n".join([_LINES_OF_THE_PAGE, *calls])


def _shown(block: Block) -> str:
    """What the page says that the program prints; nothing of a module that another one imports."""
    command = f"$ python {_name(block)}\n"
    texts = [other.text for other in blocks_of(block.page) if other.text.startswith(command)]
    return "".join(texts).removeprefix(command)


_LIBRARIES: Final = {"docs/ecosystem.md": ("flax", "optax")}
"""What a page needs beside jax."""

_PROGRAMS: Final = [block for page in pages() for block in _python_of(page) if _name(block)]


@pytest.fixture
def of_four_devices() -> Iterator[LiveServer]:
    """A server of as many devices as docs/devices.md shows."""
    directory = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
    flags = "--xla_force_host_platform_device_count=4"
    server = LiveServer(directory, XLA_FLAGS=flags)
    yield server
    server.close()
    shutil.rmtree(directory)


@pytest.mark.parametrize("block", _python_of("README.md"), ids=str)
def test_each_block_of_the_readme_runs_when_it_is_pasted_alone(
    live: LiveServer, block: Block
) -> None:
    """Into a file of its own; it prints something, so that a reader sees that it ran."""
    done = run_warm(live, _program([block]))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in pages()[1:] if _shared(page)])
def test_the_blocks_of_a_page_run_one_after_another(
    request: pytest.FixtureRequest, page: str
) -> None:
    """In one process: a name is defined above the block that uses it."""
    for library in _LIBRARIES.get(page, ()):
        pytest.importorskip(library)
    server = request.getfixturevalue("of_four_devices" if page == "docs/devices.md" else "live")
    done = run_warm(server, _program(_shared(page)))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("block", [*filter(_shown, _PROGRAMS)], ids=str)
def test_a_program_of_a_page_prints_what_the_page_shows(
    live: LiveServer, block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below it, behind `$ python NAME`; an ellipsis stands for anything."""
    monkeypatch.chdir(tmp_path)
    for beside in (other for other in _PROGRAMS if other.page == block.page):
        Path(_name(beside)).write_text(beside.text)
    shown = _shown(block)
    done = run_warm(live, _AS_A_PROGRAM, _name(block), PYTHONHASHSEED="0")
    lines = (done.stdout + done.stderr).splitlines()
    assert [line for line in shown.splitlines() if not any(map(_fits(line), lines))] == []
    assert done.returncode == ("Traceback" in done.stderr)


def _fits(shown: str) -> Callable[[str], object]:
    """Whether a line is the one that is shown."""
    return re.compile(".*".join(map(re.escape, re.split(r"…|\.\.\.", shown)))).fullmatch
