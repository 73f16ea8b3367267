"""Load under which faults are tried: many connections and streams from Pods, and what became of them in a while.

Owns the values (what to send, what came of it) and the handle on the process that sends
(`load_process`); the other side is `traffic_server`. Times are those of the monotonic
clock, which all processes of a machine share: who makes a fault notes the moment and asks about it afterwards.
"""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from devtools.errors import FatalError, LabError
from devtools.traffic.datagrams import LATE

READY_TIMEOUT = 30.0  # seconds for every connection to be there and every UDP stream to be answered
ANSWER_TIMEOUT = 30.0
NICENESS = "-10"  # a clock that waits for a processor measures the machine


class Kind(StrEnum):
    """What a stream does."""

    UDP = "udp"  # numbered datagrams, each answered
    TCP = "tcp"  # connections that stay; each sends a message and waits for it to come back
    HTTP = "http"  # connect, ask, read the answer, close; again and again


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One kind of traffic from a Pod to an address. `interval`: seconds between messages of each of `count`."""

    kind: Kind
    name: str
    namespace: str
    address: str
    port: int
    count: int = 1
    interval: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a stream in a span of time. Times in seconds.

    `sent`: datagrams, messages or requests. `lost`: datagrams without an answer. `broken`: TCP connections that
    ended, requests that failed (`reasons` says how). `silences`: of each connection, or of the UDP stream, the
    longest time without an answer; of requests, how long the longest took.
    """

    kind: Kind
    name: str
    sent: int
    lost: int
    duplicates: int
    broken: int
    reasons: tuple[str, ...]
    silences: tuple[float, ...]

    @property
    def longest(self) -> float:
        """The longest silence."""
        return max(self.silences, default=0.0)

    def percentile(self, share: float) -> float:
        """Return the silence that this share (0 to 1) of connections does not exceed."""
        return percentile(self.silences, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Outcomes by the stream's name. `stall`: by how many seconds the sending process itself was late at most.

    A silence not longer than the stall says something about the machine, and nothing about the network.
    """

    streams: Mapping[str, Outcome]
    stall: float

    @property
    def lost(self) -> int:
        """How many datagrams were not answered."""
        return sum(stream.lost for stream in self.streams.values())


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of the values that at least this share of them does not exceed; 0 for none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class Load:
    """Streams that run while the context lasts. Raises LabError when they cannot be started."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = {stream.name: stream for stream in streams}
        if len(self.streams) < len(streams):
            raise LabError("load: two streams have the same name")
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            ["nice", "-n", NICENESS, sys.executable, "-m", "devtools.traffic.load_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        try:
            self._say([asdict(stream) for stream in streams])
            self._hear(READY_TIMEOUT)
        except BaseException:
            self.close()
            raise
        self.began = time.monotonic()

    def report(self, since: float, until: float | None = None) -> Report:
        """Return what became of each stream between two moments (default: until now).

        A datagram that was sent in that time counts as lost when it is not answered at the moment of asking. With
        `until`, answers that still come in are waited for: a busy machine is late, and has lost nothing.
        """
        if until is None:
            return self._asked(since, time.monotonic())
        report = self._asked(since, until)
        before = math.inf
        while 0 < report.lost < before:
            time.sleep(LATE)
            before, report = report.lost, self._asked(since, until)
        return report

    def _asked(self, since: float, until: float) -> Report:
        self._say({"since": since, "until": until})
        answer = self._hear(ANSWER_TIMEOUT)
        assert isinstance(answer, dict)
        streams = {
            raw["name"]: Outcome(
                kind=Kind(raw["kind"]),
                name=raw["name"],
                sent=raw["sent"],
                lost=raw["lost"],
                duplicates=raw["duplicates"],
                broken=raw["broken"],
                reasons=tuple(raw["reasons"]),
                silences=tuple(raw["silences"]),
            )
            for raw in answer["streams"]
        }
        return Report(streams=streams, stall=answer["stall"])

    def forget(self, before: float) -> None:
        """Forget what was before that moment: no report will cover it. A long history would slow the load."""
        self._say({"forget": before})

    def _say(self, value: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise FatalError(f"the load's process has ended: {error}") from None

    def _hear(self, timeout: float) -> object:
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], timeout)[0]:
            # Its answer may come yet, and would be taken for that to the next question.
            raise FatalError(f"the load's process did not answer in {timeout:g} s")
        line = stdout.readline()
        if not line:
            raise FatalError(f"the load's process has ended (status {self._process.wait()})")
        message: object = json.loads(line)
        if isinstance(message, str):
            raise LabError(f"load: {message}")
        return message

    def close(self) -> None:
        """End the streams."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Load:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
