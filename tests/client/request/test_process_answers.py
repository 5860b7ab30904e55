"""What a client tells a server of its process, and what it does not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd.request import process_answers
from jaxd.request.function_snapshot import FunctionSnapshot
from jaxd.request.process_answers import file_stamp_of
from jaxd.results import exceptions, reader
from jaxd.results.exceptions import exception_of
from jaxd.results.reader import ResultReader
from jaxd_protocol.errors import PackingError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.recorded_reads import ProcessRead, to_reads
from tests.client.results.test_reader import received, sent
from tests.shared.fingerprint.defining import function


def told(body: str, kind: str, name: str, **names: Any) -> Any:
    """What is told of a function with that body."""
    made: Callable[..., Any] = function(body, **names)
    return FunctionSnapshot(made, Options()).named_texts.answer(ProcessRead(kind, name))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a project, and a secret beside it."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "table.txt").write_text("in")
    (folder / ".env").write_text("secret")
    (tmp_path / "outside.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "inner.txt").symlink_to("data/table.txt")
    os.mkfifo(folder / "pipe")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NAMED", "told")
    return folder


@pytest.mark.parametrize(
    ("body", "name", "value"),
    [
        ("return 'NAMED'", "NAMED", "told"),
        ("return 'NEVER_SET'", "NEVER_SET", None),
        ("return b'NAMED'", "NAMED", "told"),
        ("return T", "NAMED", "told"),
        ("return '${NAMED}/x'", "NAMED", "told"),
        ("return '$NAMED/x'", "NAMED", "told"),
        ("return x.expanduser()", "HOME", "/home/of"),
        ("return x", "USER", "me"),
    ],
)
def test_a_variable_that_the_function_names_is_told(
    project: Path, monkeypatch: pytest.MonkeyPatch, body: str, name: str, value: str | None
) -> None:
    """In its code or in a value that travels with it; also that there is none."""
    monkeypatch.setenv("HOME", "/home/of")
    monkeypatch.setenv("USER", "me")
    assert told(body, "variable", name, T=["NAMED"]) == value


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("variable", "AWS_SECRET_ACCESS_KEY"),
        ("variable", "HOME"),
        ("variable", "OTHER"),
        ("arguments", ""),
        ("folder", ""),
        ("recursion", ""),
        ("locale", "localeconv"),
        ("logger", "its.name"),
        ("file", "data/table.txt"),
        ("file", ".env"),
        ("file", "/etc/passwd"),
    ],
)
def test_what_the_server_has_come_up_with_is_not_told(project: Path, kind: str, name: str) -> None:
    """Whatever it asks for."""
    with pytest.raises(PackingError):
        told("return 'NAMED', 'other.txt'", kind, name)


@pytest.mark.parametrize(
    ("name", "content"),
    [("data/table.txt", b"in"), ("inner.txt", b"in"), ("data", True), ("data/missing.txt", None)],
)
def test_a_file_of_the_project_that_the_function_names_is_told(
    project: Path, name: str, content: Any
) -> None:
    """By the way from the current folder, or by its whole path."""
    body = f"return {name.split('/')}"
    assert told(body, "file", name) == content
    assert told(body, "file", str(project / name)) == content


@pytest.mark.parametrize(
    "name",
    [
        ".env",
        "link.txt",
        "linked/outside.txt",
        "../outside.txt",
        "data/../.env",
        "pipe",
        "/etc/passwd",
    ],
)
def test_files_outside_and_hidden_ones_are_not_told(project: Path, name: str) -> None:
    """Also where the function names them: a link may have been put there by others."""
    with pytest.raises(PackingError):
        told(f"return {name!r}, {name.split('/')}", "file", name)


def test_other_content_of_the_same_size_and_time_is_another_file(project: Path) -> None:
    """As `cp -p` leaves it, also when neither was written just now."""
    file = project / "data" / "table.txt"
    stamps = []
    for text in ("one", "two"):
        file.write_text(text)
        os.utime(file, ns=(1, 1))
        while (stamp := file_stamp_of(str(file)))[-1]:
            pass
        assert file_stamp_of(str(file)) == stamp
        stamps.append(stamp)
    assert stamps[0] != stamps[1]


def test_a_large_file_is_not_sent(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be read before each first call."""
    monkeypatch.setattr(process_answers, "MAX_FILE", 1)
    with pytest.raises(PackingError, match="at most"):
        told("return 'data/table.txt'", "file", "data/table.txt")


def test_the_recursion_limit_is_the_programs_while_a_function_is_walked_over() -> None:
    """For the walk it is a higher one; another thread may be asked meanwhile."""
    found = []

    class Looks:
        def __reduce__(self) -> Any:
            told_now = told("return S.getrecursionlimit()", "recursion", "", S=sys)
            found.append((sys.getrecursionlimit() > 1234, told_now))
            return str, ()

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1234)  # another test may have left a high one
    try:
        FunctionSnapshot(function("return T", T=Looks()), Options())
        assert found[0] == (True, 1234)
        assert sys.getrecursionlimit() == 1234
    finally:
        sys.setrecursionlimit(before)


def sent_in_a_result(text: str) -> Any:
    """A key of a dict, as a server has written it."""
    return next(iter(received({text: np.ones(1)})))


def sent_in_a_value(text: str) -> Any:
    """A text beside arrays."""
    return received([text, np.ones(1)])[0]


def sent_in_an_error(text: str) -> Any:
    """What an exception says."""
    failure = ("builtins", "ValueError", text, None, 0.0, "", (), (), (), (), (), ("", ""))
    return exception_of(failure, "f", ResultReader({}), "unix:x").args[0]


@pytest.mark.parametrize("send", [sent_in_a_result, sent_in_a_value, sent_in_an_error])
def test_what_a_server_has_sent_names_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, send: Callable[[str], Any]
) -> None:
    """Where the function holds it; what stands in its code names it all the same."""
    texts = reader.ReceivedTexts()
    for module in (reader, process_answers, exceptions):
        monkeypatch.setattr(module, "received_texts", texts)
    monkeypatch.setenv("SENT", "told")
    assert told("return T", "file", "data/table.txt", T=["data/table.txt"]) == b"in"
    path, variable = send("data/table.txt"), send("SENT")
    for body, kind, name, value in [
        ("return T", "file", "data/table.txt", path),
        ("return T", "file", "data/table.txt", f"./{path}"),
        ("return T", "variable", "SENT", variable),
        ("return T", "variable", "SENT", f"${variable}"),
    ]:
        with pytest.raises(PackingError):
            told(body, kind, name, T=[value])
    assert told("return open('data/table.txt')", "file", "data/table.txt") == b"in"
    number = np.frombuffer(b"SECRETK8", np.float64)[0]
    monkeypatch.setenv("SECRETK8", "told")
    with pytest.raises(PackingError):
        told("return T", "variable", "SECRETK8", T=[number])
    assert told("return ('SENT',)", "variable", "SENT") == "told"


def test_a_text_of_the_functions_own_is_none_of_a_servers(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the key of a dict that it returns: it may be the name of a folder as well."""
    texts = reader.ReceivedTexts()
    for module in (reader, process_answers):
        monkeypatch.setattr(module, "received_texts", texts)
    own = FunctionSnapshot(function("return {'data': x}"), Options()).reader
    own.read(*sent({"data": np.ones(1)}), "numpy")
    assert told("return T", "file", "data/table.txt", T=["data/table.txt"]) == b"in"


def test_of_a_server_that_sends_without_end_all_is_taken_to_be_its_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent is remembered in so much room, and nothing of it is forgotten."""
    texts = reader.ReceivedTexts()
    monkeypatch.setattr(process_answers, "received_texts", texts)
    texts.take_note(tuple(map(str, range(1 << 17))))
    with pytest.raises(PackingError):
        told("return T", "variable", "NAMED", T=["NAMED"])
    assert told("return 'NAMED'", "variable", "NAMED") == "told"


def test_the_rest_is_told_to_who_asks_for_it_by_name(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the process as it is now."""
    monkeypatch.setattr(sys, "argv", ["a", "b"])
    assert told("return S.argv", "arguments", "", S=sys) == ("a", "b")
    assert told("return S.getrecursionlimit()", "recursion", "", S=sys) == sys.getrecursionlimit()
    assert told("import os\nreturn os.getcwd()", "folder", "") == str(project)
    logger = told("import logging\nreturn logging.getLogger('a.b')", "logger", "a.b")
    assert logger == (30, 0, False, 0)
    assert told("import locale\nreturn locale.setlocale(0)", "locale", "setlocale 6")


@pytest.mark.parametrize("call", ["setlocale", "setlocale 1 2", "atof 1", "nl_langinfo -1", "x"])
def test_a_call_of_locale_that_gives_nothing_is_refused(call: str) -> None:
    """None but those that are known are made, and none sets anything."""
    with pytest.raises(PackingError):
        told("import locale\nreturn locale.setlocale(0)", "locale", call)


@pytest.mark.parametrize("message", [[("other", "x")], [("file", 1)], [("file",)], [1], 1])
def test_a_list_of_reads_has_known_kinds_and_texts(message: Any) -> None:
    """It comes from the other side."""
    from jaxd_protocol.errors import ProtocolError

    with pytest.raises(ProtocolError):
        to_reads(message)
