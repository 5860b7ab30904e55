"""A worker without jax: it keeps the host channel's protocol and greets whoever connects.

Started as the real one is, with one JSON argument. Each connection gets one line of JSON with the
epoch, and is then held open; one that a gateway hands over gets the same as its welcome.
`FAKE_WORKER` says what it does wrong:

    fail    write two lines and exit with 3 before it is ready
    unless installed  the same, until the file named by `FAKE_WORKER_NEEDS` appears
    outdated  say to the first caller that packages have changed, and end, in epoch 1
    resting say to the first caller that nobody needs it, and end, in epoch 1
    busy    report a running call, until the file named by `FAKE_WORKER_RELEASE` appears
    dying   end when somebody is handed over, without a word
    needed  refuse to give way to the next worker, unless it is forced to
    failing  end when it has been prepared beside another one
    stale   say that what it stood by with has changed, when it is needed, and end
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from jaxd_server.runtime.child_startup import read_argument

_LOOK_S = 0.02


class FakeWorker:
    def __init__(self, argument: dict[str, Any], mode: str) -> None:
        self.epoch = argument.get("epoch", 0)
        self.mode = mode
        self.principal: str | None = argument.get("principal")
        self.started_at = time.monotonic()
        self.draining = False
        self.held: list[socket.socket] = []
        self.selector = selectors.DefaultSelector()
        self.host_channel = socket.socket(fileno=argument["tether_fd"])
        # without a buffer, so that the selector sees each line that was not read yet
        self.lines = self.host_channel.makefile("rwb", buffering=0)
        self.selector.register(self.host_channel, selectors.EVENT_READ, self.on_host_channel)
        for one in argument["listeners"]:
            listening = socket.socket(fileno=one["fd"])
            listening.setblocking(False)
            self.selector.register(listening, selectors.EVENT_READ, self.on_caller)

    def send(self, message: dict[str, Any]) -> None:
        self.host_channel.sendall(json.dumps(message).encode() + b"\n")

    def stand_by(self) -> None:
        self.send({"event": "standing_by"})
        while not self.epoch:
            order = self.hear("begin")
            self.epoch = order["epoch"]
            if self.mode == "stale":
                self.send({"event": "stale"})
                sys.exit(0)
            if order["holds"]:
                if self.mode == "failing":
                    sys.exit(3)
                self.send({"event": "prepared"})
                self.hear("open")

    def hear(self, ask: str) -> dict[str, Any]:
        while True:
            line = self.lines.readline()
            if not line:
                sys.exit(0)
            order: dict[str, Any] = json.loads(line)
            if order["ask"] == ask:
                return order

    def run(self) -> None:
        if not self.epoch:
            self.stand_by()
        self.send({"event": "accepting"})
        self.send({"event": "ready"})
        while not (self.draining and not self.running_calls()):
            for key, _ in self.selector.select(_LOOK_S):
                key.data(key.fileobj)

    def running_calls(self) -> int:
        released = os.path.exists(os.environ.get("FAKE_WORKER_RELEASE", ""))
        return int(self.mode == "busy" and not released)

    def on_caller(self, listening: socket.socket) -> None:
        caller, _ = listening.accept()
        if self.principal is not None:
            return self.on_handed_over(caller, self.principal)
        self.held.append(caller)
        if self.mode == "outdated" and self.epoch == 1:
            self.send({"event": "outdated", "changes": ["optax was changed from 1 to 2"]})
            self.draining = True
        if self.mode == "resting" and self.epoch == 1:
            self.send({"event": "resting"})
            self.draining = True
        with suppress(ConnectionError):  # it only wanted to know whether we answer
            caller.sendall(json.dumps({"epoch": self.epoch, "pid": os.getpid()}).encode() + b"\n")
        return None

    def on_handed_over(self, line: socket.socket, principal: str) -> None:
        from jaxd_protocol.network.handshake import (
            finish_handshake,  # most fake workers start without
        )
        from jaxd_server.auth.connection_handover import HandoverReceiver

        line.setblocking(True)
        admitted = HandoverReceiver(principal).admit(line)
        assert isinstance(admitted.stream, socket.socket)
        self.held.append(admitted.stream)
        if self.mode == "resting" and self.epoch == 1:
            self.send({"event": "resting"})
            self.draining = True
        if self.mode == "dying":
            os._exit(3)
        welcome = {"epoch": self.epoch, "pid": os.getpid(), "principal": admitted.principal}
        finish_handshake(admitted.stream, {}, admitted.proof, welcome)

    def on_host_channel(self, _: socket.socket) -> None:
        line = self.lines.readline()
        if not line:
            sys.exit(0)  # the host is gone
        message = json.loads(line)
        if message["ask"] == "drain":
            self.draining = True
            self.send({"event": "draining"})
        if message["ask"] == "give_way":
            if self.mode == "needed" and not message["force"]:
                self.send({"event": "needed", "why": "it holds arrays of uid:7"})
            else:
                self.draining = True
                for key in list(self.selector.get_map().values()):
                    if key.fileobj is not self.host_channel:
                        self.selector.unregister(key.fileobj)
                self.send({"event": "gave_way"})
        if message["ask"] == "status":
            self.send({"status": self.status()})

    def status(self) -> dict[str, Any]:
        return {
            "calls": len(self.held),
            "connections": 0,
            "running_calls": self.running_calls(),
            "running": [],
            "idle_s": time.monotonic() - self.started_at,
            "epoch": self.epoch,
            "platform": os.environ.get("FAKE_WORKER_PLATFORM", "cpu"),
        }


def main() -> None:
    mode = os.environ.get("FAKE_WORKER", "")
    is_missing = not os.path.exists(os.environ.get("FAKE_WORKER_NEEDS", ""))
    if mode == "fail" or (mode == "unless installed" and is_missing):
        print("loading the accelerator", flush=True)
        sys.exit("libaccelerator.so: cannot open shared object file")
    FakeWorker(read_argument(), mode).run()


if __name__ == "__main__":
    main()
