"""`%load_ext jaxd` in a real kernel, on a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxd import Client
from tests.end_to_end.gates import Gate, in_thread
from tests.identity.projects import needs
from tests.kernels import TIMEOUT_S, Kernel, Message, Output, kernel
from tests.live_server import LiveServer
from tests.server.staging import until

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.filterwarnings("ignore")  # of jupyter_client and what it uses

LOADED = """
%load_ext jaxd
import threading
from pathlib import Path
import numpy as np
import jaxd
from jaxd import persistent_call

def quick(x):
    return x * 2
quick = persistent_call(quick)
"""
DISPLAYS = ("display_data", "update_display_data")
CALLS = {
    "call": "value = stopping(1.0)",
    "submit": "value = stopping.submit(1.0).result()",
    "thread": """
def call():
    global value
    value = stopping(1.0)
thread = threading.Thread(target=call)
thread.start()
thread.join()
""",
}


@pytest.fixture(scope="module")
def notebook(live: LiveServer) -> Iterator[Kernel]:
    """A kernel without jax, which has loaded the extension."""
    with kernel(lambda _: live.environment) as made:
        made.print(LOADED)
        yield made


def run_until_shown(
    notebook: Kernel, cell: str, text: str, then: Callable[[threading.Event], Any]
) -> Output:
    """What a cell sends during which something happens.

    Args:
        notebook: runs the cell.
        cell: its source.
        text: what a display shows at some time.
        then: called at once; waits for the event that the text was shown.
    """
    shown = threading.Event()

    def heard(message: Message) -> None:
        if message[0] in DISPLAYS and text in message[1]["data"]["text/plain"]:
            shown.set()

    running = in_thread(notebook.run_in_thread, cell, heard)
    then(shown)
    return running.result(TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.parametrize("way", CALLS)
def test_a_build_is_shown_in_the_cell_and_ends_in_one_line(
    notebook: Kernel, tmp_path: Path, way: str
) -> None:
    """Also where another thread calls; the name of a function is no HTML."""
    gate = Gate(tmp_path / "gate")
    name = f"<b>{way}</b>"
    notebook.print(f"""
def stopping(x):
    Path({gate.path!r}).read_bytes()
    return x + 1
stopping.__name__ = stopping.__qualname__ = {name!r}
stopping = persistent_call(stopping)
""")

    def let_go(shown: threading.Event) -> None:
        with gate.reached():
            assert shown.wait(TIMEOUT_S)

    output = run_until_shown(notebook, CALLS[way], " 1 s", let_go)
    assert not output.error, output.error
    kinds = [kind for kind, _ in output.messages if kind in DISPLAYS]
    assert kinds == ["display_data", *["update_display_data"] * (len(kinds) - 1)]
    ids = {content["transient"]["display_id"] for kind, content in output.messages if kind in kinds}
    assert len(ids) == 1
    first, *_, last = output.data(*DISPLAYS)
    assert first == f"jaxd: tracing {name} … 1 s"
    assert re.match(rf"jaxd: (compiled {name} in|{name} was ready after) \d+\.\d s", last)
    html = output.data(*DISPLAYS, of="text/html")
    assert not any("<b>" in each for each in html)
    assert f"&lt;b&gt;{way}" in html[-1]
    assert notebook.print("print(float(value))") == "2.0\n"


def test_a_quick_first_call_and_a_warm_one_display_nothing(notebook: Kernel) -> None:
    """Only their results."""
    for value in (3.0, 4.0):
        output = notebook.run(f"float(quick({value}))")
        assert [kind for kind, _ in output.messages if kind != "status"] == [
            "execute_input",
            "execute_result",
        ]
        assert output.result["text/plain"] == str(value * 2)


@pytest.mark.slow
def test_the_interrupt_button_cancels_a_call(notebook: Kernel) -> None:
    """On the server as well; the line goes, and the next cell works."""
    notebook.print("""
cancelled = jaxd.statistics().cancelled_calls
@persistent_call
def endless(x):
    while True:
        x = x + 1
""")

    def interrupt(shown: threading.Event) -> None:
        assert shown.wait(TIMEOUT_S)
        notebook.manager.interrupt_kernel()

    output = run_until_shown(notebook, "endless(1.0)", " 1 s", interrupt)
    assert output.reply["ename"] == "KeyboardInterrupt"
    assert output.data(*DISPLAYS)[-1] == ""
    assert "jaxd/" not in output.error
    told = notebook.print("""
import time
end = time.monotonic() + 30
while jaxd.statistics().cancelled_calls == cancelled:
    assert time.monotonic() < end
print(jaxd.statistics().cancelled_calls - cancelled, float(quick(5.0)))
""")
    assert told == "1 10.0\n"


def test_an_error_in_a_traced_function_shows_the_line_of_its_cell(notebook: Kernel) -> None:
    """Of each of the functions that lead to it, also once another cell was run."""
    notebook.print("""# a comment
@persistent_call
def shaped(x):
    y = x * 2

    return split(y)""")
    notebook.print("""def split(y):
    # not so many
    return y.reshape(7, 9)""")
    error = notebook.run("shaped(np.ones(3))").error
    assert "cannot reshape array of shape (3,)" in error
    assert re.search(r"-> 6 +return split\(y\)", error)
    assert re.search(r"-> 3 +return y\.reshape\(7, 9\)", error)
    assert "site-packages" not in error


def test_a_cell_that_was_edited_and_run_again_gives_the_new_answer(notebook: Kernel) -> None:
    """Also where the function that was edited is a helper in another cell."""
    cell = "@persistent_call\ndef edited(x):\n    return helped(x) + 1"
    helper = "def helped(x):\n    return x * 10"
    notebook.print(helper)
    found = []
    for run in (cell, cell.replace("+ 1", "+ 2"), helper.replace("10", "100"), cell, helper):
        notebook.print(run)
        found.append(float(notebook.print("print(float(edited(1.0)))")))
    assert found == [11.0, 12.0, 102.0, 101.0, 11.0]


SCRIPT = """
def evil(x):
    return x
evil.__name__ = evil.__qualname__ = "<script>evil</script>"
evil = persistent_call(evil)
evil(1.0)
"""


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("evil.why(1.0)", "&lt;script&gt;evil&lt;/script&gt;: hit"),
        ("jaxd.statistics()", "calls"),
        ("jaxd.devices()", "cpu"),
        ("held", "float32[3,4]"),
        ("held.preview(rows=2, columns=3)", "2 x 3 of 3 x 4"),
        ("held.preview()", ">22</td>"),
    ],
)
def test_what_is_asked_for_is_shown_as_html(notebook: Kernel, expression: str, shown: str) -> None:
    """With what users wrote escaped, and without fetching an array."""
    notebook.print(f"{SCRIPT}\nheld = quick.remote(np.arange(12, dtype='f4').reshape(3, 4))")
    html = notebook.run(expression).result["text/html"]
    assert shown in html
    assert "<script" not in html
    assert notebook.print("print(held.is_here)") == "False\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%jaxd statsu", "UsageError: there is no %jaxd statsu. Did you mean 'status'?"),
        ("%jaxd frobnicate", "There are: status, why, warm, server,"),
        ("%jaxd why nothing(1)", "NameError: name 'nothing' is not defined"),
        ("%jaxd why len", "UsageError: len is no persistent function. Decorate it with"),
        ("%jaxd warm quick quick", "UsageError: 'quick quick' is no function and no call."),
        ("%jaxd status --jsno", "Did you mean '--json'?"),
        ("%%jaxd now\n1", "UsageError: %%jaxd takes no options."),
    ],
)
def test_a_wrong_magic_says_what_was_meant(notebook: Kernel, line: str, said: str) -> None:
    """In one line, without a traceback; what comes after the cell is not run."""
    output = notebook.run(line)
    assert said in output.printed
    assert output.reply["status"] == "error"
    assert "Traceback" not in output.error


@pytest.mark.slow
def test_the_magics_answer(notebook: Kernel, live: LiveServer) -> None:
    """What the commands say, a `Why`, and help."""
    assert live.unix in notebook.print("%jaxd")
    assert "calls" in notebook.print("%jaxd status")
    assert live.unix in notebook.print("%jaxd server")
    assert "quick: hit" in notebook.run("quick(1.0)\n%jaxd why quick(2.0)").result["text/plain"]
    assert notebook.print("why = %jaxd why quick(np.ones(3))\nprint(why.verdict)") == "compile\n"
    assert re.match(r"quick: compiled in .* s\n", notebook.print("%jaxd warm quick(np.ones(5))"))
    assert notebook.print("%jaxd warm quick(np.ones(5))") == "quick: was ready\n"
    payload = notebook.run("%jaxd?").reply["payload"]
    assert "%jaxd why f(x, y)" in payload[0]["data"]["text/plain"]
    assert "restart" in notebook.completions("%jaxd ")


def test_another_server_can_be_chosen(notebook: Kernel) -> None:
    """For functions that were not called yet; what is no address is refused."""
    assert notebook.run("%jaxd server nowhere").error.startswith("ConfigurationError: ")
    told = notebook.print("""
before = %env JAXD_SERVER
%jaxd server unix:///nowhere/at/all
print(jaxd.Settings.resolve().server)
%jaxd server $before
""")
    assert told.splitlines()[1] == "unix:///nowhere/at/all"
    assert notebook.print("print(float(quick(1.0)))") == "2.0\n"


HOOKED = """%%jaxd
import jax
from jax import jit
traces = jaxd.statistics().traces
@jit
def squared(x):
    return x @ x
squared(np.eye(3))
print(jaxd.statistics().traces - traces)
"""


@pytest.mark.slow
def test_a_cell_with_the_magic_is_served_and_the_next_is_not(notebook: Kernel) -> None:
    """What it jits stays so; its lines keep their numbers."""
    assert notebook.print(HOOKED) == "1\n"
    kinds = "type(squared), type(jit(len)), type(jax.jit(len))"
    told = notebook.print(f"print(*[each.__name__ for each in ({kinds})])")
    assert told == "HookedFunction PjitFunction PjitFunction\n"
    assert re.search(r"-> 3 +1/0", notebook.run("%%jaxd\n\n1/0").error)
    assert notebook.print("print(type(jax.jit(len)).__name__)") == "PjitFunction\n"
    again = "%%jaxd\nprint(type(jit(lambda x: x)).__name__, type(jax.jit(lambda x: x)).__name__)"
    assert notebook.print(again) == "HookedFunction HookedFunction\n"


@pytest.mark.parametrize("magics", ["%%jaxd\n%%time", "%%time\n%%jaxd", "%%jaxd\nawait sleep(0)"])
def test_the_magic_stands_beside_others(notebook: Kernel, magics: str) -> None:
    """In either order, and where the cell waits."""
    notebook.print("import jax\nfrom asyncio import sleep")
    told = notebook.print(f"{magics}\nprint(type(jax.jit(lambda x: x)).__name__)")
    assert told.startswith("HookedFunction\n")
    assert notebook.print("print(type(jax.jit(len)).__name__)") == "PjitFunction\n"


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        ("jax.numpy.ones((2, 3, 4, 5), 'bfloat16')", "2 x 2 at [0, 0] of 2 x 3 x 4 x 5"),
        ("jax.numpy.zeros((0, 3))", "0 x 2 of 0 x 3"),
        ("jax.numpy.int32(3)", "the only element"),
        ("jax.random.split(jax.random.key(0), 3)", "PRNG keys have no numbers"),
    ],
)
def test_an_array_of_any_kind_has_a_preview(notebook: Kernel, made: str, shown: str) -> None:
    """As text and as HTML."""
    notebook.print(f"@persistent_call\ndef make():\n    import jax\n    return {made}")
    found = notebook.run("made = make.remote()\nmade.preview(2, 2)").result
    assert shown in found["text/plain"]
    assert shown in found["text/html"]


@pytest.mark.slow
@pytest.mark.own_server
def test_the_extension_works_without_a_server_and_can_be_unloaded(
    start_live: Callable[..., LiveServer],
) -> None:
    """A worker is replaced, and a server that ended is told of."""
    server = start_live()
    with kernel(lambda _: server.environment) as notebook:
        notebook.print(LOADED)
        notebook.print("quick(1.0)")
        assert notebook.print("%jaxd restart").startswith("worker 2 is ready after ")
        assert notebook.print("print(float(quick(3.0)))") == "6.0\n"
        assert server.close() == 0
        assert "no server runs at" in notebook.print("%jaxd")
        notebook.print("%reload_ext jaxd\n%unload_ext jaxd")
        assert "not found" in notebook.run("%jaxd").printed


def exported(notebook: Path, live: LiveServer, during: Callable[[], Any]) -> str:
    """The page that `jupyter nbconvert --execute` makes of a notebook.

    Args:
        notebook: its file, in a folder for the files of its process.
        live: the server that it uses.
        during: called while it runs.
    """
    needs("nbclient")
    needs("nbconvert")
    folder = str(notebook.parent)
    environment = {**live.environment, "IPYTHONDIR": folder, "HOME": folder}
    command = [sys.executable, "-m", "nbconvert", "--execute", "--to", "html", str(notebook)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    during()
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, said
    return notebook.with_suffix(".html").read_text()


def book_of(*cells: str) -> str:
    """The file of a notebook with these cells."""
    listed = [
        {"cell_type": "code", "id": f"c{at}", "metadata": {}, "source": text, "outputs": []}
        | {"execution_count": None}
        for at, text in enumerate(cells)
    ]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": listed})


@pytest.mark.slow
def test_an_exported_notebook_has_one_line_for_a_build(
    live: LiveServer, client: Client, tmp_path: Path
) -> None:
    """All updates are in the place of the first."""
    gate, file = Gate(tmp_path / "gate"), tmp_path / "book.ipynb"
    slow = f"def slow(x):\n    Path({gate.path!r}).read_bytes()\n    return x + 1"
    file.write_text(book_of(LOADED, slow, "persistent_call(slow)(1.0)"))

    def is_long() -> bool:
        running = client.caller.session.ask("statistics")["running"]
        return any(call["function"] == "slow" and call["seconds"] > 2 for call in running)

    def let_go() -> None:
        with gate.reached():
            until(is_long)

    page = exported(file, live, let_go)
    assert re.findall(r"jaxd: ([a-z ]+)", page) in (
        ["compiled slow in "],
        ["slow was ready after "],
    )


@pytest.mark.slow
def test_the_notebook_among_the_examples_runs(live: LiveServer, tmp_path: Path) -> None:
    """Its cells show what the document says."""
    file = tmp_path / "notebook.ipynb"
    file.write_bytes((ROOT / "examples" / "notebook.ipynb").read_bytes())
    page = exported(file, live, lambda: None)
    for words in ("forward: compile", "RemoteArray float32[32,64]", "3 x 5 of 32 x 64", "Devices"):
        assert words in page
    assert "cannot reshape array of shape (32, 64)" in page
