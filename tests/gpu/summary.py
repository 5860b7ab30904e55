"""What a run on a GPU gave, for people: on which machine, with which versions, and what failed."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from tests.gpu.nvidia import gpus
from tests.gpu.parts import Part
from tests.gpu.results import read

_PACKAGES: Final = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "numpy", "flax")
_LINES: Final = 6
"""Of a failure; the file of its part has more."""


def write_summary(parts: Sequence[Part], output: Path) -> None:
    """Writes `summary.md` of all that has a result so far."""
    lines = ["# On a GPU", "", *(f"- {fact}" for fact in _facts()), ""]
    for part in parts:
        lines += [f"## {part.name}", "", *_lines_of(part, output), ""]
    (output / "summary.md").write_text("\n".join(lines))


def is_good(parts: Sequence[Part], wanted: Collection[str], output: Path) -> bool:
    """Whether each part that was wanted has results, and nothing failed in it."""
    chosen = [part for part in parts if not wanted or part.name in wanted]
    return all(_is_good(part, output) for part in chosen)


def _is_good(part: Part, output: Path) -> bool:
    if part.writes.endswith(".json"):
        return bool(_rows(output / part.writes))
    results = _results(output / part.writes)
    return bool(results) and all(one["outcome"] != "failed" for one in results)


def _facts() -> Iterator[str]:
    for gpu in gpus():
        yield f"{gpu.name}, {gpu.total_mib} MiB, driver {gpu.driver}"
    yield f"Python {platform.python_version()}"
    for name in _PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue


def _lines_of(part: Part, output: Path) -> Iterator[str]:
    if part.writes.endswith(".json"):
        yield from _figures(output / part.writes)
        return
    results = _results(output / part.writes)
    counts = Counter(one["outcome"] for one in results)
    yield ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "not run"
    for one in results:
        if one["outcome"] == "failed":
            yield f"\n- `{one['test']}`\n"
            yield from (f"      {line}" for line in one["text"].splitlines()[-_LINES:])
    reasons = Counter(one["text"] for one in results if one["outcome"] == "skipped")
    for reason, count in reasons.most_common():
        yield f"\n- skipped, {count}: {reason}"


def _results(path: Path) -> list[dict[str, Any]]:
    return list(read(path).values())


def _rows(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["rows"]) if path.exists() else []


def _figures(path: Path) -> Iterator[str]:
    rows = _rows(path)
    if not rows:
        yield "not run"
    for row in rows:
        medians = ", ".join(f"{name} {value:.4g}" for name, value in row["median"].items())
        yield f"- {row['name']} ({row['unit']}): {medians}"
        for one in row["ratios"]:
            if one["measured"] is not None:
                yield f"  - {one['ratio']}: {one['measured']:.3g}, {one['verdict']}"
