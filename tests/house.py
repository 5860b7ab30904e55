"""`make house`: the figures of the source tree, and the rules that they have to keep.

`python -m tests.house --map` prints the map of the folders that ARCHITECTURE.md holds.

Size is counted by Python's tokenizer: a line counts when it holds code, so neither blank lines nor
comments nor docstrings do. Imports are read by grimp, on which import-linter stands: those inside
of functions and those for annotations count like all others. The layers are import-linter's
contracts, in pyproject.toml; `lint-imports` checks them, here and in `make lint`.
"""

from __future__ import annotations

import ast
import gc
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean

import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "jaxd": ROOT / "client" / "jaxd",
    "jaxd_protocol": ROOT / "shared" / "jaxd_protocol",
    "jaxd_server": ROOT / "server" / "jaxd_server",
}

MOST_FILES = 460
MOST_ENTRIES = 15
"""At the top of each package, whatever they are."""
MOST_IN_A_FOLDER = 16
"""Python files of one folder, its `__init__.py` among them."""
MOST_LINES_OF_A_FUNCTION = 60
MOST_TERMS = 40
MOST_COMPLEX = 10
"""McCabe's complexity of one function."""
MOST_COMPLEX_ON_AVERAGE = 2.07

_SILENT = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)

_OF_NAMED_TUPLES = frozenset({"_asdict", "_fields", "_make", "_replace"})

_JAX_FOLDERS = ("jax_objects", "jax_compat", "interop", "jit", "tracing", "user_code")


@cache
def sources() -> dict[Path, ast.Module]:
    """Every file of the product, parsed, by its path."""
    files = (file for folder in PACKAGES.values() for file in sorted(folder.rglob("*.py")))
    gc.disable()  # all of it stays: looking for garbage in it takes as long as to parse it
    try:
        return {file: ast.parse(file.read_text()) for file in files}
    finally:
        gc.enable()
        gc.freeze()


@cache
def nodes() -> dict[Path, tuple[ast.AST, ...]]:
    """All that each file is made of: to walk over it takes longer than to parse it."""
    return {file: tuple(ast.walk(tree)) for file, tree in sources().items()}


@cache
def imports() -> dict[str, frozenset[str]]:
    """For each module of the product the modules of the product that it imports, anywhere in it."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    return {
        module: frozenset(graph.find_modules_directly_imported_by(module))
        for module in sorted(graph.modules)
    }


def circles(arrows: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """The sets of two and more nodes that reach each other (Tarjan), the largest first."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in number:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10_000)
    for node in arrows:
        if node not in number:
            visit(node)
    return sorted(found, key=len, reverse=True)


def lines_of_code(file: Path) -> int:
    """How many lines hold code."""
    text = file.read_text()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))  # docstrings
    return len(lines)


def entries(package: str) -> list[str]:
    """What lies at the top of a package."""
    return sorted(
        each.name
        for each in PACKAGES[package].iterdir()
        if each.is_file() or any(each.glob("*.py"))  # not what a moved folder has left behind
    )


def folders() -> Iterator[tuple[Path, int]]:
    """Each folder of the product, with the number of Python files in it."""
    counts = Counter(file.parent for file in sources())
    yield from sorted(counts.items())


def functions() -> Iterator[tuple[int, str]]:
    """The lines from `def` to the end of each function, with where it stands."""
    for file, inside in nodes().items():
        for node in inside:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield lines, f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"


def complexities() -> list[int]:
    """McCabe's complexity of each function, as ruff counts it."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select=C901", "--output-format=concise"]
        + ["--config=lint.mccabe.max-complexity=0", "--exit-zero", "--ignore-noqa"]
        + [str(folder) for folder in PACKAGES.values()],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return [int(found) for found in re.findall(r"too complex \((\d+) > 0\)", done.stdout)]


def private_names_of_jax() -> set[tuple[str, str]]:
    """Each private name of jax, flax or equinox, once for each file that uses it.

    Modules below `jax._src` and their like, in imports and strings; and, in the folders that exist
    for jax, attributes with an underscore of what is neither `self` nor `cls`.
    """
    found = set()
    private = re.compile(r"^(jax|jaxlib|flax|equinox)(\.\w+)*\._\w+(\.\w+)*$")
    for file, inside in nodes().items():
        name = file.relative_to(ROOT).as_posix()
        is_for_jax = any(folder in name for folder in _JAX_FOLDERS) or "jax" in file.stem
        for node in inside:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if private.match(node.value):
                    found.add((name, node.value))
            elif isinstance(node, ast.Import | ast.ImportFrom):
                module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                imported = {f"{module}{each.name}" for each in node.names}
                found.update((name, each) for each in imported if private.match(each))
            elif isinstance(node, ast.Attribute) and is_for_jax:
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                is_private = re.match(r"_[a-z]", node.attr) and node.attr not in _OF_NAMED_TUPLES
                if is_private and owner not in {"self", "cls", "os", "sys"}:
                    found.add((name, f".{node.attr}"))
    return found


def terms() -> list[str]:
    """The words of the glossary in CONTRIBUTING.md."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page.partition("| word | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    return [row.split("|")[1].strip() for row in table.splitlines() if row.startswith("|")]


def contracts() -> list[dict[str, object]]:
    """The contracts of import-linter, as pyproject.toml has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: list[dict[str, object]] = settings["tool"].get("importlinter", {}).get("contracts", [])
    return found


def architecture_map() -> str:
    """The layers of the packages from top to bottom, one block of text each, for ARCHITECTURE.md.

    Layers are numbered; those that stand in one line of a contract share a number. Behind each
    folder is the first sentence of its docstring.
    """
    layers = {str(one["name"]): one["layers"] for one in contracts() if one.get("exhaustive")}
    names = {"jaxd": "client", "jaxd_protocol": "protocol", "jaxd_server": "server"}
    return "\n\n".join(
        "\n".join(["```text", *_package_map(package, layers[name]), "```"])
        for package, name in names.items()
    )


def _package_map(package: str, layers: object) -> Iterator[str]:
    assert isinstance(layers, list)
    root = PACKAGES[package]
    yield f"{root.relative_to(ROOT).as_posix()}/"
    for number, layer in enumerate(layers, 1):
        for name in layer.split(" | "):
            yield from _folder_map(root / name, f"{number:>3}  ", 0)


def _folder_map(folder: Path, prefix: str, depth: int) -> Iterator[str]:
    """The line of a folder, or of a module, and those of the folders in it."""
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    head = f"{prefix}{'  ' * depth}{folder.name}{'/' if folder.is_dir() else '.py'}"
    described = (ast.get_docstring(sources()[file]) or "").partition("\n\n")[0]
    sentence = " ".join(described.split()).split(". ")[0].rstrip(".")
    yield f"{head:<25} {sentence}"
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield from _folder_map(inner, " " * len(prefix), depth + 1)


def broken_layers() -> str:
    """The report of `lint-imports`, empty when every contract is kept."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--no-logo"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def figures() -> Iterator[tuple[str, str]]:
    """What there is, a name and a figure each."""
    lines = {file: lines_of_code(file) for file in sources()}
    yield "files", str(len(lines))
    for package, folder in PACKAGES.items():
        own = [count for file, count in lines.items() if file.is_relative_to(folder)]
        yield f"  {package}", f"{len(own)} files, {sum(own):,} lines of code"
        yield "    entries at its top", str(len(entries(package)))
    yield "lines of code", f"{sum(lines.values()):,}"
    yield "folders", str(len(list(folders())))
    fullest, most = max(folders(), key=lambda each: each[1])
    yield "most files in a folder", f"{most} ({fullest.relative_to(ROOT)})"
    yield "imports of our own", f"{sum(map(len, imports().values())):,}"
    sizes = [len(circle) for circle in circles(imports())]
    yield "circles of files", ", ".join(map(str, sizes)) or "none"
    yield "contracts", str(len(contracts()))
    yield "internal __all__", str(len(_with_dunder_all()))
    yield "terms of the glossary", str(len(terms()))
    yield "private names of jax", str(len(private_names_of_jax()))
    longest, where = max(functions())
    yield "longest function", f"{longest} lines ({where})"
    complexity = complexities()
    yield "complexity", f"{mean(complexity):.2f} on average, {max(complexity)} at most"


_PUBLIC = (
    PACKAGES["jaxd"] / "__init__.py",
    PACKAGES["jaxd"] / "errors.py",
    PACKAGES["jaxd_protocol"] / "errors.py",
)


def _with_dunder_all() -> list[str]:
    return [
        file.relative_to(ROOT).as_posix()
        for file in sources()
        if file not in _PUBLIC and re.search(r"^\s*__all__\b", file.read_text(), re.MULTILINE)
    ]


def violations() -> Iterator[str]:
    """What breaks a rule, each with where."""
    if len(sources()) > MOST_FILES:
        yield f"{len(sources())} files, more than {MOST_FILES}"
    yield from _folders_that_are_too_full()
    for circle in circles(imports()):
        yield f"a circle of files: {', '.join(circle)}"
    for lines, where in functions():
        if lines > MOST_LINES_OF_A_FUNCTION:
            yield f"a function of {lines} lines: {where}"
    for name in _with_dunder_all():
        yield f"{name} has an __all__; only what is public needs one"
    complexity = complexities()
    if max(complexity) > MOST_COMPLEX or round(mean(complexity), 2) > MOST_COMPLEX_ON_AVERAGE:
        yield f"complexity: {mean(complexity):.2f} on average, {max(complexity)} at most"
    if len(terms()) > MOST_TERMS:
        yield f"{len(terms())} terms in the glossary, more than {MOST_TERMS}"
    if report := broken_layers():
        yield report


def _folders_that_are_too_full() -> Iterator[str]:
    for package in PACKAGES:
        if len(entries(package)) > MOST_ENTRIES:
            yield f"{package} has {len(entries(package))} entries at its top, over {MOST_ENTRIES}"
    for folder, count in folders():
        where = folder.relative_to(ROOT)
        if count > MOST_IN_A_FOLDER:
            yield f"{where} has {count} files, more than {MOST_IN_A_FOLDER}"
        init = sources().get(folder / "__init__.py")
        if init is None or not ast.get_docstring(init):
            yield f"{where}/__init__.py has no docstring about what the folder is for"


def main(words: Sequence[str]) -> int:
    """Prints the figures and what breaks a rule, 1 when something does; or only the map."""
    if list(words) == ["--map"]:
        print(architecture_map())
        return 0
    for name, figure in figures():
        print(f"{name:24}{figure}")
    found = list(violations())
    print("\n".join(["", *found]) if found else "\nAll rules are kept.")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
