"""The rules of the source tree: who imports jax, what unpickles, what is public and documented.

The tables come first. A rule is changed by changing its table, with the reason beside it. Layers,
circles and sizes are those of `make house` (`tests/house.py`), which one test here runs.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import jaxd
from tests.documents.test_pages import riddles
from tests.house import (
    PACKAGES,
    ROOT,
    architecture_map,
    nodes,
    private_names_of_jax,
    sources,
    violations,
)

# What may import jax or jaxlib when it is imported itself.
JAX_AT_IMPORT = (
    "client/jaxd/tracing/jax_stages.py",  # subclasses of jax's own; imported only where jax is
    "server/jaxd_server/codec/",
    "server/jaxd_server/compilation/compiling/compiler.py",
    "server/jaxd_server/compilation/disk_cache/compile_target.py",
    "server/jaxd_server/compilation/executables.py",
    "server/jaxd_server/compilation/program_source.py",
    "server/jaxd_server/jax_compat/",
    "server/jaxd_server/processes/without_server.py",  # for a process that runs programs itself
    "server/jaxd_server/processes/worker/sizing.py",
    "server/jaxd_server/rpc/services/checkpoints.py",
    "server/jaxd_server/rpc/services/values.py",
    "server/jaxd_server/user_code/callback_targets.py",
    "server/jaxd_server/user_code/jax_callbacks.py",
    "server/jaxd_server/user_code/mutation_guard.py",
    "server/jaxd_server/values/references.py",
    "shared/jaxd_protocol/jax_objects/arrays.py",  # imported only where jax is
)

# Outside the server, the only files that may import jax inside a function. Everything else on the
# client's side finds it in sys.modules, where it is only when the user has imported it.
JAX_INSIDE_FUNCTIONS = (
    "client/jaxd/cli/commands/demo.py",  # what a user would write
    "client/jaxd/interop/jax_settings.py",  # made where jax is loaded
    "client/jaxd/tracing/export.py",  # for a server that takes no code, it is traced here
    "client/jaxd/tracing/jax_stages.py",  # whose objects are jax's own
    "client/jaxd/tracing/second_trace.py",  # JAXD_VERIFY=1 and place="here" trace in this process
    "client/jaxd/tracing/inline.py",  # JAXD_INLINE=1 is jax.jit in this process
    "client/jaxd/tracing/primitive.py",  # where a tracer of jax has arrived
    "shared/jaxd_protocol/pickling/arrays.py",  # the same
    "shared/jaxd_protocol/jax_objects/",  # runs where an object arrives: on the server
    "shared/jaxd_protocol/jit/",  # runs where a function is traced
)

# The only files that name what is private to jax or the libraries on it, each with what it needs.
# Each states what happens when a name has moved, and has a test that notices.
NAMES_PRIVATE_PARTS_OF_JAX = {
    "client/jaxd/interop/jax_registry.py": "handles become arguments of jax's own functions",
    "client/jaxd/interop/jax_runtime.py": "whether a backend was made already",
    "client/jaxd/interop/jax_settings.py": "the settings and contexts of a thread",
    "client/jaxd/interop/local_programs.py": "jax's own dispatch, for programs that were loaded",
    "client/jaxd/results/exceptions.py": "where equinox looks for what error_if has found",
    "client/jaxd/tracing/primitive.py": "the rules of checkify",
    "server/jaxd_server/jax_compat/compilation_cache.py": "jax's own cache on disk",
    "server/jaxd_server/jax_compat/lowered.py": "what a lowered program consists of",
    "server/jaxd_server/jax_compat/lowered_transfer.py": "a lowered program that arrives",
    "server/jaxd_server/jax_compat/placement.py": "a program for another device",
    "server/jaxd_server/user_code/jax_callbacks.py": "callbacks of the client's code",
    "server/jaxd_server/user_code/output.py": "the names of jax's own loggers",
    "shared/jaxd_protocol/jax_objects/arrays.py": "arrays from plain data, weak types, keys",
    "shared/jaxd_protocol/jax_objects/installed_state.py": "rules, tracers and types of jax",
    "shared/jaxd_protocol/jax_objects/jit_objects.py": "the parts of a jitted function",
    "shared/jaxd_protocol/jax_objects/names.py": "the types of jax's objects",
    "shared/jaxd_protocol/jax_objects/decomposition.py": "a cached function that is made again",
    "shared/jaxd_protocol/jax_objects/registrations.py": "pytrees, and modules of equinox",
    "shared/jaxd_protocol/jit/program_identity.py": "the facts and the text of a lowered program",
    "shared/jaxd_protocol/jit/settings.py": "settings and meshes of a thread",
    "shared/jaxd_protocol/jax_objects/structures.py": "a named tuple that is registered",
    "client/jaxd/tracing/export.py": "how many frames a location has",
    "shared/jaxd_protocol/fingerprint/values/modules.py": "a function that reads identities",
}

# The only files in which bytes become objects or code, each with who has written the bytes.
OPENS_BYTES = {
    "client/jaxd/interop/library_state.py": "a library that this process has imported",
    "client/jaxd/cli/notebook.py": "what the user types behind a magic, in the user's own names",
    "server/jaxd_server/jax_compat/lowered_transfer.py": "this server's builders, or its user",
    "shared/jaxd_protocol/jax_objects/program_bytes.py": "this server, or one of this very user",
    "shared/jaxd_protocol/pickling/unpack/private_modules.py": "an authenticated client: source",
    "shared/jaxd_protocol/pickling/unpack/unpickler.py": "an authenticated client",
    "shared/jaxd_protocol/messages/tracebacks.py": "jaxd: one line that raises",
}

# A fresh process that only says `import jaxd` must not pay for these.
NOT_LOADED_BY_IMPORT_JAXD = ("jax", "jaxlib", "numpy", "ml_dtypes", "rpyc", "cloudpickle")


def files(with_text: str) -> dict[str, Path]:
    """Source files in which something fits the expression, by their paths from the root."""
    return {
        path.relative_to(ROOT).as_posix(): path
        for path in sources()
        if re.search(with_text, path.read_text())
    }


def package_of(path: str) -> str:
    """The import name of the package that the file belongs to."""
    return path.split("/")[1]


def is_type_checking(node: ast.AST) -> bool:
    """Whether the node is an `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imported(nodes_: Iterable[ast.AST]) -> Iterator[str]:
    """The top-level names that these nodes import."""
    for node in nodes_:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The statements outside functions and outside `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        if not (isinstance(child, ast.expr) or is_function or is_type_checking(child)):
            yield child
            yield from run_at_import(child)


def allowed(path: str, places: tuple[str, ...]) -> bool:
    """Whether the file is in the table or lies in a folder that is."""
    return any(path == each or (each.endswith("/") and path.startswith(each)) for each in places)


def test_jax_is_imported_at_import_time_only_where_the_table_says() -> None:
    """The host, the client and the protocol can be imported where jax is not installed."""
    found = [
        path
        for path, file in files(IMPORTS_JAX).items()
        if {"jax", "jaxlib"} & set(imported(run_at_import(sources()[file])))
        and not allowed(path, JAX_AT_IMPORT)
    ]
    assert found == []


def test_outside_the_server_jax_is_not_imported_inside_functions_either() -> None:
    """A client that calls the server stays a light process, whatever it calls."""
    found = [
        path
        for path, file in files(IMPORTS_JAX).items()
        if package_of(path) != "jaxd_server"
        and {"jax", "jaxlib"} & (set(imported(nodes()[file])) - set(_type_checking_imports(file)))
        and not allowed(path, JAX_INSIDE_FUNCTIONS)
    ]
    assert found == []


def _type_checking_imports(file: Path) -> Iterator[str]:
    for node in nodes()[file]:
        if is_type_checking(node):
            yield from imported(ast.walk(node))


def test_bytes_become_objects_only_where_the_table_says() -> None:
    """What unpickles, evaluates or executes is looked at again when it moves or grows."""
    opening = {f"{m}.{name}" for m in _OPENERS for name in ("Unpickler", "load", "loads")}
    opening |= {"eval", "exec", "Unpickler", "serialize_executable.deserialize_and_load"}
    found = {
        path
        for path, file in files(OPENS).items()
        for node in nodes()[file]
        if isinstance(node, ast.Call | ast.ClassDef)
        for each in (node.bases if isinstance(node, ast.ClassDef) else [node.func])
        if ast.unparse(each) in opening
    }
    assert found == set(OPENS_BYTES)


IMPORTS_JAX = r"\b(?:import|from) +jax(?:lib)?\b"
OPENS = r"\b(?:Unpickler|loads?|eval|exec|deserialize_and_load)\b"
_OPENERS = ("pickle", "marshal", "cloudpickle", "dill", "shelve")


def test_private_names_of_jax_stand_only_where_the_table_says() -> None:
    """A new version of jax is tried on these files; the others know only what is public."""
    found = {file for file, name in private_names_of_jax() if not name.startswith(".")}
    assert found == set(NAMES_PRIVATE_PARTS_OF_JAX)


def test_the_rules_of_make_house_are_kept() -> None:
    """Layers, circles, and how much there may be in a folder, a function, the glossary."""
    assert list(violations()) == []


def test_every_path_in_the_tables_exists() -> None:
    """A file that was renamed does not leave a stale exception behind."""
    tables = (*JAX_AT_IMPORT, *JAX_INSIDE_FUNCTIONS)
    assert [path for path in tables if not (ROOT / path).exists()] == []


def test_importing_jaxd_is_light() -> None:
    """`import jaxd` in a fresh process loads neither jax nor numpy, rpyc or cloudpickle."""
    program = "import json, sys, jaxd; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(str(p.parent) for p in PACKAGES.values())},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert set(NOT_LOADED_BY_IMPORT_JAXD) & set(json.loads(output)) == set()


def test_every_public_name_is_exported() -> None:
    """`jaxd.__all__` holds real names, each once, and is what `dir(jaxd)` shows."""
    assert [name for name in jaxd.__all__ if not hasattr(jaxd, name)] == []
    assert sorted(jaxd.__all__) == dir(jaxd)
    assert {"connect", "errors", "persistent_call", "statistics"} <= set(jaxd.__all__)


def test_no_module_of_the_client_is_called_as_a_public_name() -> None:
    """Its import would put it in the place of a function that is loaded when it is asked for."""
    modules = {file.stem for file in PACKAGES["jaxd"].iterdir()}
    assert modules & set(jaxd.__all__) == {"errors"}


def test_what_is_no_public_name_is_an_attribute_error() -> None:
    """As of any module, although the names are looked up one by one."""
    with pytest.raises(AttributeError, match=r"module 'jaxd' has no attribute 'persistent_cal'"):
        jaxd.persistent_cal  # noqa: B018


def test_every_public_name_is_documented() -> None:
    """Each name of the package has a docstring of its own; data is described by its module."""
    public: list[Any] = [getattr(jaxd, name) for name in jaxd.__all__]
    described = [each for each in public if inspect.isclass(each) or inspect.isroutine(each)]
    assert len(described) > 20
    assert [each for each in described if not vars(each).get("__doc__", each.__doc__)] == []


def test_every_public_name_is_typed() -> None:
    """Each public function and public method annotates every parameter and what it returns."""
    public: list[Any] = [getattr(jaxd, name) for name in jaxd.__all__]
    functions = [each for each in public if inspect.isfunction(each)]
    functions += [
        member
        for each in public
        if inspect.isclass(each) and each.__module__.startswith("jaxd")
        for name, member in vars(each).items()
        if inspect.isfunction(member) and (not name.startswith("_") or name == "__call__")
    ]
    assert len(functions) > 40
    assert [gap for function in functions for gap in _gaps(function)] == []


def _gaps(function: Any) -> list[str]:
    signature = inspect.signature(function)
    gaps = [
        f"{function.__qualname__}({parameter.name})"
        for parameter in signature.parameters.values()
        if parameter.annotation is parameter.empty and parameter.name not in {"self", "cls"}
    ]
    if signature.return_annotation is signature.empty:
        gaps.append(f"{function.__qualname__} ->")
    return gaps


_DOCUMENTED = re.compile(r'^ *(?:async )?def test_[^\"]*?:\n\s+"""\w', re.MULTILINE | re.DOTALL)


def test_every_test_has_a_docstring() -> None:
    """Each test has a docstring: the behaviour, in one sentence."""
    silent = [
        f"{file.relative_to(ROOT)}::{name}"
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in _silent_tests(file.read_text())
    ]
    assert silent == []


def _silent_tests(text: str) -> Iterator[str]:
    parts = re.split(r"^(?= *(?:async )?def test_)", text, flags=re.MULTILINE)[1:]
    if all(map(_DOCUMENTED.match, parts)):  # many times faster than to parse it
        return
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            and not ast.get_docstring(node)
        ):
            yield node.name


def test_every_test_that_the_page_on_security_names_exists() -> None:
    """Its two tables name a test for what stops each attack."""
    page = (ROOT / "docs" / "security.md").read_text()
    tables = page.partition("## Each against the other")[2].partition("## How this is tested")[0]
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", tables)
    assert len(named) > 30
    for path, test in named:
        assert f"def {test}" in (ROOT / path).read_text(), path


def test_no_message_and_no_help_has_a_phrase_that_readers_stopped_at() -> None:
    """Whatever the product says is a text in its sources; docstrings are not said."""
    texts = [text for inside in nodes().values() for text in _texts(inside)]
    assert len(texts) > 1000
    assert riddles("\n".join(texts)) == {}


def _texts(inside: Sequence[ast.AST]) -> Iterator[str]:
    alone = {id(node.value) for node in inside if isinstance(node, ast.Expr)}
    for node in inside:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def test_the_map_in_architecture_md_is_that_of_the_tree() -> None:
    """`python -m tests.house --map` prints what the page has to hold."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    section = page.partition("## The map\n")[2].partition("\n## ")[0]
    assert architecture_map() in section
    assert section.count("```text") == architecture_map().count("```text")


def test_every_class_and_path_on_the_pages_on_architecture_exists() -> None:
    """What is renamed or moved is found on these pages."""
    page = "".join((ROOT / name).read_text() for name in ("ARCHITECTURE.md", "docs/internals.md"))
    words = set(re.findall(r"`([\w./]+)`", page))
    classes = {
        node.name
        for inside in nodes().values()
        for node in inside
        if isinstance(node, ast.ClassDef)
    }
    places = [ROOT, *PACKAGES.values()]
    named = {word for word in words if re.fullmatch(r"[A-Z][a-z]\w*", word)}
    paths = {word for word in words if "/" in word}
    assert len(named) > 60
    assert named - classes == set()
    assert [
        path
        for path in sorted(paths)
        if not any((place / f"{path}{end}").exists() for place in places for end in ("", ".py"))
    ] == []
