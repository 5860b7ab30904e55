"""The runner, on programs that are written for these tests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.corpus.__main__ import in_turns, run_program
from tests.corpus.places import Corpus, MissingError, Project
from tests.corpus.running import Program, code_of_notebook

PROGRAM = """
import generators
import jax
import jax.numpy as jnp

def served(x):
    return x * 2

given = (x for x in (1.0, 1.0))

@jax.jit
def refused(x):
    return x + next(given)

@jax.jit
def constant():
    return jnp.ones(3)

@jax.jit
def inside(x):
    return x + constant()

print(jax.jit(served)(jnp.arange(3.0)), refused(1.0), inside(1.0))
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The folder of a corpus with one clone in it."""
    repository = tmp_path / "repositories" / "somebody+something"
    (repository / "examples").mkdir(parents=True)
    (repository / "examples" / "program.py").write_text(PROGRAM)
    (repository / "examples" / "generators.py").write_text("")
    identity = ("-c", "user.name=n", "-c", "user.email=e@localhost")
    for command in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "first")):
        subprocess.run(["git", *command], cwd=repository, check=True)
    return tmp_path


def project_of(clone: Path) -> Project:
    """The project, at its only commit."""
    command = ["git", "rev-parse", "HEAD"]
    cwd = clone / "repositories" / "somebody+something"
    commit = subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout
    return Project("something", (), "somebody/something", commit.strip())


def test_files_come_from_a_clone_at_the_commit_of_the_row(clone: Path) -> None:
    """And a second time they are there."""
    corpus, project = Corpus(clone), project_of(clone)
    files = corpus.checkout(project)
    assert (files / "examples" / "program.py").read_text() == PROGRAM
    assert corpus.checkout(project) == files


@pytest.mark.parametrize(
    ("project", "said"),
    [
        (Project("p", (), "nobody/nothing", "abc"), "no clone of github.com/nobody/nothing"),
        (Project("p", (), "somebody/something", "0" * 40), "is not in the clone"),
    ],
    ids=["clone", "commit"],
)
def test_what_is_not_there_is_said(clone: Path, project: Project, said: str) -> None:
    """Its row is skipped with that reason."""
    with pytest.raises(MissingError, match=said):
        Corpus(clone).checkout(project)


def test_the_code_of_a_notebook_is_that_of_its_cells(tmp_path: Path) -> None:
    """Without what only a notebook understands."""
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "x = 1\n", "y = x % 2"]},
        {"cell_type": "code", "source": ["!pip install p\n", "print(y)"]},
        {"cell_type": "code", "source": ["%%bash\n", "ls | wc"]},
        {"cell_type": "code", "source": ["%%time\n", "try:\n", "  z\n", "except:\n", "  %pip"]},
        {
            "cell_type": "code",
            "source": ["y / 0"],
            "metadata": {"tags": ["raises-exception"]},
        },
    ]
    file = tmp_path / "n.ipynb"
    file.write_text(json.dumps({"cells": cells}))
    said: list[str] = []
    exec(code_of_notebook(file), {"print": lambda thing: said.append(str(thing))})
    assert said == ["1", str(ZeroDivisionError)]


def test_projects_take_turns() -> None:
    """A run that is ended early has seen something of each."""
    one, two = Project("one"), Project("two")
    rows = [Program(one, "a"), Program(one, "b"), Program(two, "c")]
    assert [row.title for row in in_turns(rows)] == ["a", "c", "b"]


@pytest.mark.soak
@pytest.mark.own_server
@pytest.mark.timeout(120)
def test_a_program_is_run_by_the_command_and_its_output_compared(clone: Path) -> None:
    """Both processes have one cache, as those of a user."""
    corpus = Corpus(clone)
    program = Program(project_of(clone), "examples/program.py")
    found = run_program(corpus, program, again=False)
    assert found["verdict"] == "fell back"
    assert [said[0].split(",")[0] for said in found["said"].values()] == ["jaxd: 2 calls"] * 2
    assert all("refused" in said[1] for said in found["said"].values())
    assert {kind: each["missing"] for kind, each in found["output"].items()} == {
        "cold": 0,
        "warm": 0,
    }
    assert (found["traces"]["cold"], found["traces"]["warm"]) == (3, 0)
    assert run_program(corpus, program, again=False) == json.loads(json.dumps(found))
