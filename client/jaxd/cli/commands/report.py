"""`jaxd report`: what a server has saved, for whom, and what was compiled needlessly."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from jaxd.cli.query import (
    add_query_options,
    ask_server,
    owner,
    positive_int,
    print_report,
    require_packages,
    writing,
)
from jaxd_protocol.base.terminal import counted, duration, table, truncate
from jaxd_protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from jaxd_protocol.messages.report import NamedUse, Needless, Report, Use

SUMMARY = "show what was saved, for whom, and what was compiled needlessly"
EXAMPLE = "jaxd report --top 5; jaxd report --picture saved.svg"

_DEFAULT_TOP: Final = 10
_FORMATS: Final = (".png", ".svg", ".pdf")
_SAVED_COLOR, _BUILT_COLOR, _NEEDLESS_COLOR = "#2a7f62", "#c9893a", "#b0413e"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "--top",
        metavar="N",
        type=positive_int,
        default=_DEFAULT_TOP,
        help=f"how many functions and needless builds are listed (default: {_DEFAULT_TOP})",
    )
    parser.add_argument(
        "--picture",
        metavar="FILE",
        help="also draw it, as .png, .svg or .pdf; needs matplotlib: pip install 'jaxd[report]'",
    )
    add_query_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the report, and draws it; starts no server.

    Returns:
        0.

    Raises:
        NoServer: when none runs.
        ConfigurationError: when there can be no picture: another format, no matplotlib, or a file
            that cannot be written.
        JaxdError: when a server runs but does not answer.
    """
    from jaxd_protocol.messages.report import Report  # makes dataclasses

    if arguments.picture is not None:
        _require_drawing(arguments.picture)
    answer = ask_server(arguments.server, "report")
    report = Report.from_dict(answer)
    if arguments.picture is not None:
        _draw(report, arguments.top, arguments.picture)
    shown = {"server": answer["server"], **report.to_dict()}
    return print_report(
        arguments, shown, lambda: "\n".join(_text(answer["server"], report, arguments.top))
    )


# text ---------------------------------------------------------------------------------------------


def _text(server: str, report: Report, top: int) -> Iterator[str]:
    yield f"{'server':<9} {server}"
    yield f"{'since':<9} {_since_text(report)}"
    yield f"{'saved':<9} {_use_text(report.total)}"
    for each in report.principals:
        yield f"{'for':<9} {owner(each.name)}: {_use_text(each.use)}"
    if report.functions:
        yield ""
        yield _functions_text(report.functions, top)
    yield ""
    yield from _needless_lines(report.needless, top)


def _since_text(report: Report) -> str:
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.since))
    length = duration(max(0.0, time.time() - report.since))
    how = "over restarts" if report.outlives_server else "since the server's worker started"
    return f"{began} ({length}, {how})"


def _use_text(use: Use) -> str:
    """``saved 8.2 s (3 in memory, 1 from disk), 2.1 s of building (2 compiled)``."""
    return (
        f"{duration(use.saved_s)} of tracing and compiling ({use.found:,} in memory, "
        f"{use.loaded:,} from disk); spent {duration(use.built_s)} on {use.compiled:,}"
    )


def _functions_text(functions: Sequence[NamedUse], top: int) -> str:
    head = ("function", "where", "saved", "spent", "in memory", "from disk", "compiled")
    by_saved = list(functions[:top])
    by_built = sorted(functions, key=lambda one: -one.use.built_s)[:top]
    chosen = [*by_saved, *(one for one in by_built if one not in by_saved)]
    rows = [
        (
            truncate(one.name),
            truncate(one.where),
            duration(one.use.saved_s),
            duration(one.use.built_s),
            *(f"{count:,}" for count in (one.use.found, one.use.loaded, one.use.compiled)),
        )
        for one in chosen
    ]
    left = len(functions) - len(chosen)
    more = f"\nand {left:,} more (--top {len(functions)})" if left else ""
    return table([head, *rows]) + more


def _needless_lines(needless: Sequence[Needless], top: int) -> Iterator[str]:
    if not needless:
        yield "compiled needlessly: nothing that is known of"
        return
    most = {one.function: one for one in sorted(needless, key=lambda one: one.seconds)}
    programs = sum(one.programs for one in most.values())  # a program may have several reasons
    seconds = sum(one.seconds for one in most.values())
    yield f"compiled needlessly: {counted(programs, 'program')}, {duration(seconds)}"
    for one in needless[:top]:
        place = one.where or one.function
        yield f"  {place}: {counted(one.programs, 'program')}, {duration(one.seconds)}"
        yield f"    {one.text}"
    if len(needless) > top:
        yield f"  and {len(needless) - top:,} more (--top {len(needless)})"


# a picture ----------------------------------------------------------------------------------------


def _require_drawing(path: str) -> None:
    """Returns when a picture can be drawn: looked at before the server is asked.

    Raises:
        ConfigurationError: when it cannot.
    """
    if not path.lower().endswith(_FORMATS):
        raise ConfigurationError(
            f"{path} is no name of a picture. Have it end in {', '.join(_FORMATS)}."
        )
    require_packages("a picture", "report", "matplotlib")


def _draw(report: Report, top: int, path: str) -> None:
    """Writes the picture.

    Raises:
        ConfigurationError: when the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # needs no display: no backend is chosen

    functions = report.functions[:top]
    needless = report.needless[:top]
    heights = [max(2, len(functions)), max(1, len(needless))][: 2 if needless else 1]
    figure = Figure(
        figsize=(9.0, 1.9 + 0.36 * sum(heights) + 0.8 * len(heights)), layout="constrained"
    )
    figure.suptitle(
        f"jaxd: {duration(report.total.saved_s)} saved, {duration(report.total.built_s)} spent on "
        f"building\nsince {_since_text(report)}",
        fontsize=11,
    )
    axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _draw_functions(axes[0], functions)
    if needless:
        _draw_needless(axes[1], needless)
    with writing(path), rc_context({"svg.fonttype": "none"}):  # text, and no outlines of it
        figure.savefig(path, dpi=150)


def _draw_functions(axes: Any, functions: Sequence[NamedUse]) -> None:
    """Two bars for each: what was saved, and what was spent."""
    names = [truncate(one.name) for one in functions]
    places = range(len(functions))
    saved = [one.use.saved_s for one in functions]
    built = [one.use.built_s for one in functions]
    up, down = ([place + shift for place in places] for shift in (-0.2, 0.2))
    axes.barh(up, saved, 0.38, color=_SAVED_COLOR, label="saved: not traced and compiled again")
    axes.barh(down, built, 0.38, color=_BUILT_COLOR, label="spent: traced and compiled")
    axes.set_yticks(list(places), names)
    _finish(axes, "functions")
    if functions:
        place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0)}  # above the bars
        axes.legend(**place, ncols=2, frameon=False, fontsize=8)


def _draw_needless(axes: Any, needless: Sequence[Needless]) -> None:
    labels = [truncate(f"{one.where or one.function} {one.subject}") for one in needless]
    places = list(range(len(needless)))
    bars = axes.barh(places, [one.seconds for one in needless], 0.6, color=_NEEDLESS_COLOR)
    counts = [counted(one.programs, "program") for one in needless]
    axes.bar_label(bars, counts, padding=3, fontsize=8)
    axes.margins(x=0.15)
    axes.set_yticks(places, labels)
    _finish(axes, "compiled needlessly")


def _finish(axes: Any, title: str) -> None:
    axes.invert_yaxis()  # the first one on top
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("seconds")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=8)
