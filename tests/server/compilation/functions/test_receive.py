"""A function that has just arrived, held against what its client says it means."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import cloudpickle
import pytest

from jaxd_protocol.errors import PackingError, ProtocolError
from jaxd_protocol.fingerprint import Part, walk
from jaxd_protocol.jit.options import fingerprint_of
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pytree.references import function_mark
from jaxd_server.codec.object_references import object_numbers
from jaxd_server.compilation.functions import receive as arrivals
from jaxd_server.compilation.functions.receive import UnpackedFunction, receive_function

RATE = 2.0
TABLE = {"rate": 2.0}


def step(x: Any) -> Any:
    """Something to send."""
    return helper(x) * RATE


def helper(x: Any) -> Any:
    """What it needs."""
    return x + TABLE["rate"]


class Sent:
    """A function as its client sends it."""

    def __init__(self, function: Callable[..., Any], ignored: tuple[str, ...] = ()) -> None:
        walked = walk(function, "step", ignore=ignored)
        self.manifest = FunctionManifest.of(walked.fingerprint, ignored)
        self.code = pack_function(function, "function 'step'", walked.reach)

    def receive(self, **changes: Any) -> UnpackedFunction:
        """What the server makes of it when the client says this much else."""
        manifest = self.manifest._replace(**changes)
        return receive_function("step", manifest, manifest.fingerprint, self.code)


def test_a_function_that_means_what_its_client_says_is_in_no_doubt() -> None:
    """The server has come to the same digest by itself."""
    arrival = Sent(step).receive()
    assert arrival.doubt is None
    assert arrival.function(1.0) == 6.0


def test_its_objects_have_the_numbers_of_its_client() -> None:
    """So that results can name them."""
    sent = Sent(step)
    arrival = sent.receive()
    ours = walk(step, "step").reach.numbered
    assert [type(each) for each in arrival.objects] == [type(each) for each in ours]
    number = list(arrival.objects).index(arrival.function)
    assert ours[number] is step
    assert (function_mark(sent.manifest.fingerprint), number) in object_numbers.of(arrival.function)


def test_another_digest_is_doubted() -> None:
    """What is built for this client must not answer another; the text is for people."""
    sent = Sent(step)
    arrival = sent.receive(fingerprint=b"f" * 16)
    assert arrival.doubt is not None
    assert arrival.doubt.startswith("step is not shared with other processes")
    assert "in how its parts hang together" in arrival.doubt  # all of them are the same
    assert "extra_key=" in arrival.doubt
    assert arrival.function(1.0) == 6.0
    assert object_numbers.of(arrival.function) == ()


def test_a_doubt_names_the_parts_that_differ() -> None:
    """Changed, missing and too many."""
    sent = Sent(step)
    parts = tuple(
        part._replace(digest=b"d" * 8) if part.name == "global RATE" else part
        for part in sent.manifest.parts
        if part.name != "function helper"
    )
    more = Part("value", "global LR", b"e" * 8)
    arrival = sent.receive(fingerprint=b"f" * 16, parts=(*parts, more))
    assert arrival.doubt is not None
    named = arrival.doubt.partition("(")[2].partition(")")[0]
    assert sorted(named.split(", ")) == ["function helper", "global LR", "global RATE"]


def test_other_code_than_what_is_meant_is_doubted() -> None:
    """As when a client lies, or something was lost on the way."""
    sent, other = Sent(step), Sent(helper)
    sent.code = other.code
    doubt = sent.receive().doubt
    assert doubt is not None
    assert "function step" in doubt


def test_what_changed_while_it_was_sent_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread of the client: the meaning is from before, the code from after."""
    sent = Sent(step)
    monkeypatch.setitem(TABLE, "rate", 3.0)
    sent.code = Sent(step).code
    arrival = sent.receive()
    assert arrival.function(1.0) == 8.0
    assert "TABLE['rate']" in str(arrival.doubt)


def test_another_algorithm_or_decision_is_doubted() -> None:
    """All that a client says is in the digest."""
    sent = Sent(step)
    assert sent.receive(salt=b"other").doubt is not None
    assert sent.receive(local={**sent.manifest.local, __name__: False}).doubt is not None


def test_what_the_client_ignores_is_ignored_here() -> None:
    """Else it would be in the digest of the server alone."""
    sent = Sent(step, ("RATE",))
    assert sent.receive().doubt is None
    assert sent.receive(ignored=()).doubt is not None


def test_a_function_that_is_nobody_else_s_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something in it has no content: the digest could not be the same."""
    stream = (number for number in [1])

    def draws(x: Any) -> Any:
        return x + 1 if x else next(stream)

    sent = Sent(draws)
    assert not sent.manifest.shared
    monkeypatch.setattr(arrivals, "walk", Mock(side_effect=PackingError("it cannot be walked")))
    arrival = sent.receive()
    assert (arrival.function(1.0), arrival.doubt, arrival.objects) == (2.0, None, ())


def limited(x: Any) -> Any:
    """Reads a setting of an installed class."""
    return x * json.JSONEncoder.limit  # type: ignore[attr-defined]


def test_a_setting_of_an_installed_class_that_is_another_one_here_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot travel; the message has both values."""
    monkeypatch.setattr(json.JSONEncoder, "limit", 2, raising=False)
    sent = Sent(limited)
    assert sent.receive().doubt is None
    monkeypatch.setattr(json.JSONEncoder, "limit", 3)
    with pytest.raises(
        PackingError, match=r"reads json\.JSONEncoder\.limit, which is 2 .* and 3 on the server"
    ):
        sent.receive()


def test_code_without_a_meaning_counts_by_its_bytes() -> None:
    """From a client that has only rpyc and cloudpickle."""
    data = cloudpickle.dumps(lambda x: x + 1)
    arrival = receive_function("step", None, fingerprint_of(data), data)
    assert (arrival.function(1), arrival.doubt, arrival.objects) == (2, None, ())
    with pytest.raises(ProtocolError, match="other code"):
        receive_function("step", None, b"f" * 16, data)
