"""What cannot change a result does not change a key."""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.identity.gallery import GALLERY, NAMES
from tests.identity.probing import Job, ProbeResult, probe
from tests.identity.projects import write
from tests.live_server import source_environment

REPLACED = {
    "comments and blank lines": [
        ("# top", "# one\n\n# two"),
        ("# middle", "\n\n\n# other"),
        ("# bottom", "# end\n\n"),
        ("    return x + 2", "    # why\n\n    return x + 2  # because"),
    ],
    "imports above and below": [
        ("# top", "import zlib, json as tools\nfrom os import path"),
        ("# bottom", "import textwrap"),
    ],
    "docstrings": [
        ('"""Plain."""', '"""Something else, longer."""'),
        ('"""Nested."""', '"""Something else."""'),
        ('"""Inner."""', '"""Something else."""'),
        ('"""A model."""', '"""Something else."""'),
        ('"""Calls it."""', '"""Something else."""'),
        ('"""Decorated."""', '"""Something else."""'),
        ('"""Colors."""', '"""Something else."""'),
        ('"""Settings."""', '"""Something else."""'),
        ('"""Helpers."""', '"""Something else."""'),
        ('"""A module with a docstring."""', '"""Something else."""'),
    ],
    "annotations of functions": [
        ('(x: int, y: "float" = 2) -> float:', '(x: "int | str", y: float = 2) -> str:'),
        ("def push(self, item: T) -> T:", "def push(self, item: object) -> int:"),
    ],
    "functions and globals that nothing reads": [
        ("# middle", "MORE = 1\ndef more(x): return MORE"),
        ("# top", "EXTRA = [1]\ndef extra(x): return EXTRA"),
        ("# bottom", "class Unused: pass"),
    ],
    "where the lines break": [
        ("return x * y + 3", "return (\n        x * y\n        + 3\n    )"),
        ("    def run(x): return function(x) * rate", "    def run(x):\n        return function(x) * rate"),
        ("def scale(x): return x * FACTOR", "def scale(\n    x,\n):\n    return x * FACTOR"),
    ],
    "the order of definitions": [
        ("def tests(x)", "def swapped(x)"),
        ("# bottom", "def tests(x): return x in {'gamma', 'delta', 'alpha', 'beta'}"),
    ],
    "how numbers and texts are written": [
        ('"a text that is long, with spaces"', "'a text that is ' 'long, with spaces'"),
        ("n < 2 else n", "n < 0x2 else n"),
        ("rate=0.25,", "rate=2.5e-1,"),
    ],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """Another way to come to the same project: how its text, its place or its process differs."""

    says: str
    text: Callable[[str], str] = lambda text: text
    place: str = "place"
    job: dict[str, Any] = field(default_factory=dict)


def _replaced(says: str) -> Variant:
    def text(source: str) -> str:
        for old, new in REPLACED[says]:
            assert old in source
            source = source.replace(old, new)
        return source

    return Variant(says, text)


def _after(says: str, code: str) -> Variant:
    return Variant(says, job={"after": code})


def _before(says: str, code: str) -> Variant:
    return Variant(says, job={"before": code})


def _renamed(text: str) -> str:
    return "--- trainer.py\n" + text.lstrip()


VARIANTS = [
    *map(_replaced, REPLACED),
    Variant("another folder", place="a/much deeper/folder"),
    Variant("another file name", _renamed, job={"module": "trainer"}),
    Variant("run as a program", job={"module": "__main__"}),
    *(
        Variant(f"run as {called}", job={"module": "__main__", "called": called})
        for called in ("<ipython-input-3-0123abcd>", "<ipython-input-17-4567cdef>", "<stdin>", "/tmp/ipykernel_12345/678.py")
    ),
    Variant("looked at in another order", job={"names": NAMES[::-1]}),
    _after("after 2,000 calls", "main.exercise()"),
    _after("after a trace", "import sys\nsys.settrace(lambda *a: None)\nmain.exercise()"),
    _before("under a trace", "import sys\ndef t(*a): return t\nsys.settrace(t)"),
    _before("under a profiler", "import sys\nsys.setprofile(lambda *a: None)"),
    _after("after a reload of a module", "import importlib\nimportlib.reload(main.pkg.sub)"),
    _before("other addresses", "junk = [object() for _ in range(100_000)]"),
    _after("equal texts that are other objects", "main.TEXT = ''.join(list(main.TEXT))\nmain.TABLE = {''.join(list(k)): v for k, v in main.TABLE.items()}"),
    _after("copies of what is mutable", "import copy\nmain.TABLE, main.CONFIG, main.SET = map(copy.deepcopy, (main.TABLE, main.CONFIG, main.SET))"),
    _after("an array with gaps", "import numpy as np\nmain.ARRAY = np.repeat(np.repeat(main.ARRAY, 2, 0), 3, 1)[::2, ::3]"),
    _after("an array that is read-only", "main.ARRAY.flags.writeable = False"),
    _after("an array that is a view from behind", "main.ARRAY = main.ARRAY[::-1].copy()[::-1]"),
    _after("modules that are loaded besides", "import colorsys, wave, decimal, zipfile"),
    _after("parts of numpy that are loaded when used", "import numpy\nnumpy.random, numpy.fft"),
    _after("another working folder", "import os\nos.chdir('/')"),
    _after("other variables of the environment", "import os\nos.environ.update(HOME='/x', TZ='Asia/Tokyo', EXTRA='1')"),
    _after("other seeds of random numbers", "import random, numpy\nrandom.seed(5)\nnumpy.random.seed(5)"),
    _after("after garbage was collected", "import gc\ngc.collect()\ngc.freeze()"),
    _after("a bound instance that has been called", "main.instance(3); main.bound(4); main.partial()"),
]  # fmt: skip
if sys.version_info >= (3, 12):
    MONITOR = """
import sys
sys.monitoring.use_tool_id(2, "probe")
for event in (sys.monitoring.events.LINE, sys.monitoring.events.CALL):
    sys.monitoring.register_callback(2, event, lambda *a: None)
sys.monitoring.set_events(2, sys.monitoring.events.LINE | sys.monitoring.events.CALL)
"""
    VARIANTS.append(_before("under sys.monitoring", MONITOR))
    VARIANTS.append(_after("after sys.monitoring", MONITOR + "main.exercise()"))
if find_spec("coverage"):
    COVERAGE = (
        "import coverage\nwatch = coverage.Coverage(data_file=None, branch={})\nwatch.start()"
    )
    VARIANTS.append(_before("under coverage", COVERAGE.format(False)))
    VARIANTS.append(_before("under coverage of branches", COVERAGE.format(True)))

PROCESSES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "hash seed 0": ((), {"PYTHONHASHSEED": "0"}),
    "hash seed 1": ((), {"PYTHONHASHSEED": "1"}),
    "hash seed random": ((), {"PYTHONHASHSEED": "random"}),
    "development mode": (("-X", "dev"), {}),
    "no .pyc files": (("-B",), {}),
    "another locale": ((), {"LC_ALL": "C", "LANG": "C"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all projects of this file are."""
    return tmp_path_factory.mktemp("stability")


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, str]:
    """The digests of the project as it is, from a process of their own."""
    (found,) = probe([Job(str(write(folder / "plain", GALLERY)), NAMES)])
    return found.digests()


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[str, ProbeResult]:
    """What is found each way."""
    jobs = []
    for number, way in enumerate(VARIANTS):
        place = write(folder / str(number) / way.place, way.text(GALLERY))
        jobs.append(Job(str(place), **({"names": NAMES} | way.job)))
    return dict(zip([way.says for way in VARIANTS], probe(jobs), strict=True))


def test_each_function_has_a_key_of_its_own(plain: dict[str, str]) -> None:
    """Otherwise the other tests would show nothing."""
    distinct = {name: key for name, key in plain.items() if name not in ("instance", "bound")}
    assert len(set(distinct.values())) == len(distinct)


@pytest.mark.parametrize("way", [way.says for way in VARIANTS])
def test_the_key_stays(way: str, plain: dict[str, str], seen: dict[str, ProbeResult]) -> None:
    """Of everything in the project, when only this differs."""
    assert seen[way].digests() == plain


@pytest.mark.parametrize("process", PROCESSES)
def test_the_key_is_the_same_in_another_process(
    folder: Path, process: str, plain: dict[str, str]
) -> None:
    """However the interpreter was started."""
    flags, environment = PROCESSES[process]
    (found,) = probe([Job(str(folder / "plain"), NAMES)], flags, **environment)
    assert found.digests() == plain


def test_the_key_is_the_same_from_a_compiled_file(folder: Path, plain: dict[str, str]) -> None:
    """Written by one process and read by the next."""
    place = write(folder / "compiled", GALLERY)
    job = Job(str(place), NAMES)
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": ""}
    (first,) = probe([job], **kept)
    assert list(place.glob("__pycache__/main.*.pyc"))
    (second,) = probe([job], **kept)
    assert first.digests() == second.digests() == plain


def test_a_program_has_the_keys_of_the_module(folder: Path, plain: dict[str, str]) -> None:
    """`python main.py` and `import main` are one."""
    look = f"""
if __name__ == "__main__":
    import json, sys
    sys.path.append({str(Path(__file__).parent)!r})
    import prober
    print(json.dumps(prober.inspect_values(sys.modules["__main__"], {NAMES!r})))
"""
    place = write(
        folder / "program", GALLERY.replace("# bottom\n--- helpers", look + "--- helpers")
    )
    (place / "other").mkdir()
    shutil.copy(place / "main.py", place / "train.py")
    done = subprocess.run(
        [sys.executable, str(place / "train.py")],
        env=source_environment(folder),
        capture_output=True,
        text=True,
        check=True,
    )

    assert ProbeResult(json.loads(done.stdout)).digests() == plain
