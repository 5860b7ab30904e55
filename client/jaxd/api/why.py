"""Explains what a call would do, and why: `f.why(...)` and `jaxd why`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jaxd_protocol.errors import NoServer
from jaxd_protocol.explain.key_differences import Difference
from jaxd_protocol.network.local_server import LocalServerFiles, is_server_running

if TYPE_CHECKING:
    from jaxd.dispatch.caller import Caller
    from jaxd.tracing.fallback import LocalRun


@dataclass(frozen=True, slots=True)
class Why:
    """A server's report of what a call would do; `str` of it is for people.

    Attributes:
        verdict: `hit`: a program is ready; `load`: one is on disk; `compile`: one has to be made;
            `local`: the server cannot answer it, and it runs in this process.
        function: the function's name.
        key: hex name of function, options and configuration; empty where it has none.
        fingerprint: hex name of the function alone; likewise.
        reason: why, in one line.
        nearest: of the known program that is most like it, `function`, `key`, `same_key`,
            `arguments`, `seconds`, `age_s` and `calls`; None when nothing is like it.
        differences: what differs from that.
        advice: what would make the function compile less.
        programs: those that are ready for such a call, each with `arguments`, `seconds`, `age_s`
            and `calls`.
        place: where it runs, `server` or `here`, and with `place="here"` or `"auto"` behind a colon
            the rule that decided.
    """

    verdict: Literal["hit", "load", "compile", "local"]
    function: str
    key: str
    fingerprint: str
    reason: str
    nearest: Mapping[str, Any] | None
    differences: tuple[Difference, ...]
    advice: tuple[str, ...]
    programs: tuple[Mapping[str, Any], ...]
    place: str = "server"

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> Why:
        """Reads what a server answered."""
        fields = {name: report[name] for name in cls.__slots__ if name != "place"}
        fields["place"] = report.get("place", "server")
        found = map(Difference.from_dict, report["differences"])
        fields["differences"] = tuple(each.with_values(_value_seen) for each in found)
        fields["advice"], fields["programs"] = tuple(report["advice"]), tuple(report["programs"])
        return cls(**fields)

    @classmethod
    def of_local_run(cls, local: LocalRun) -> Why:
        """Of a call that runs in this process."""
        spec = None if local.call is None else local.call.spec
        key, fingerprint = (spec.key, spec.snapshot.fingerprint) if spec else (b"", b"")
        reason = f"runs under jax.jit in this process: {local.reason}"
        return cls(
            "local",
            local.fallback.name,
            key.hex(),
            fingerprint.hex(),
            reason,
            None,
            (),
            (),
            (),
            "here",
        )

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["differences"] = [each.to_dict() for each in self.differences]
        fields["nearest"] = None if self.nearest is None else dict(self.nearest)
        programs = [dict(program) for program in self.programs]
        return fields | {"advice": list(self.advice), "programs": programs}

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython's

    def _repr_html_(self) -> str:
        from jaxd.interop.html_views import paragraphs, titled  # for notebooks

        title, *lines = str(self).split("\n")
        return titled(title, paragraphs(lines))

    def __str__(self) -> str:
        lines = [f"{self.function}: {self.verdict}"]
        if self.differences:
            lines += [f"  {each.text}" for each in self.differences]
        else:
            lines.append(f"  {self.reason}")
        if self.nearest is not None:
            lines.append(f"  compared with {_nearest(self.nearest, self.function)}")
        lines += [f"  {_program(program)}" for program in self.programs]
        if self.place != "server":
            lines.append(f"  runs {self.place}")
        lines += [f"  advice: {text}" for text in self.advice]
        return "\n".join(lines)


def _value_seen(digest: str) -> str | None:
    """A value that this process has told a server of itself, by its digest."""
    answers = sys.modules.get("jaxd.request.process_answers")
    return None if answers is None else answers.values_seen.get(digest)


def running_server(caller: Caller | None) -> Caller:
    """The caller, when its server can be reached; none is started for a question.

    Raises:
        NoServer: for None, which stands for `JAXD_INLINE=1`, and when no local server runs.
        ConfigurationError: when the directory of the local server's socket is not private.
    """
    if caller is None or caller.session.settings.inline:
        raise NoServer(
            "JAXD_INLINE=1 or JAXD_SERVER=none means that this process uses no server, and plain "
            "jax.jit does not say why it compiles. Unset it to ask a server."
        )
    if caller.session.settings.server is None and not caller.session.connected:
        socket = LocalServerFiles.of_this_environment().socket
        if not is_server_running(socket):
            raise NoServer(
                f"no server runs at {socket}, so nothing is compiled. The first call of a "
                "persistent function starts one, and so does: jaxd start"
            )
    return caller


def is_valid_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a function could be called like this; False for none where it needs arguments."""
    if args or kwargs:
        return True
    import inspect

    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # it does not say what it takes
        return True
    return True


def _nearest(nearest: Mapping[str, Any], function: str) -> str:
    if nearest["same_key"]:
        what = "the program"
    elif nearest["function"] == function:
        what = f"the version {nearest['key'][:8]}"
    else:
        what = f"{nearest['function']} ({nearest['key'][:8]})"
    return f"{what} {_program(nearest)}"


def _program(program: Mapping[str, Any]) -> str:
    """``compiled 3 min ago in 8.2 s for x: float32[128,8]; 17 calls since``."""
    calls = "call" if program["calls"] == 1 else "calls"
    given = ", ".join(f"{name}: {text}" for name, text in program["arguments"].items())
    return (
        f"compiled {_ago(program['age_s'])} in {program['seconds']:.1f} s for "
        f"{given or 'no arguments'}; {program['calls']} {calls}"
    )


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
