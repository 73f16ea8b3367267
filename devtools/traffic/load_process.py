"""The process that sends a load: `python -m devtools.traffic.load_process`, spoken to by `load.Load`.

First line of standard input: a JSON list of streams. When all are under way one line comes back ("ready" as a JSON
object, or a string that says what is wrong). After that each line {"since", "until"} is answered by
{"streams", "stall"}; {"forget"} drops what was before that moment (the history of an hour would make this process
late) and is not answered. Ends when its input does.
"""

from __future__ import annotations

import bisect
import json
import os
import sys
import time

from devtools.errors import LabError
from devtools.traffic.load import READY_TIMEOUT, Kind, Stream
from devtools.traffic.load_loop import Loop, Remembers
from devtools.traffic.load_streams import Http, Tcp, Udp

Json = dict[str, object]


class Group:
    """All of a stream."""

    def __init__(self, loop: Loop, stream: Stream) -> None:
        self.stream = stream
        number = range(stream.count)
        self.udp = [Udp(loop, stream) for _ in number] if stream.kind is Kind.UDP else []
        self.tcp = [Tcp(loop, stream) for _ in number] if stream.kind is Kind.TCP else []
        self.http = [Http(loop, stream) for _ in number] if stream.kind is Kind.HTTP else []

    @property
    def ready(self) -> bool:
        """Whether every part of it has had an answer."""
        return (
            all(stream.ready for stream in self.udp)
            and all(stream.ready for stream in self.tcp)
            and all(stream.ready for stream in self.http)
        )

    def drop_before(self, moment: float) -> None:
        """Forget what was before a moment."""
        parts: list[Remembers] = [*self.udp, *self.tcp, *self.http]
        for part in parts:
            part.drop_before(moment)

    def report(self, since: float, until: float) -> Json:
        """Return the outcome of a span."""
        named: Json = {"kind": str(self.stream.kind), "name": self.stream.name}
        if self.udp:
            return named | _sum([stream.report(since, until) for stream in self.udp])
        if self.tcp:
            breaks = [why for stream in self.tcp for when, why in stream.breaks if since <= when <= until]
            moments = [bisect.bisect_right(t.sent, until) - bisect.bisect_left(t.sent, since) for t in self.tcp]
            silences = [stream.silence(since, until) for stream in self.tcp]
            return named | _counts(sum(moments), breaks, silences)
        done = [entry for stream in self.http for entry in stream.done if entry[1] >= since and entry[0] <= until]
        waiting = [until - stream.begin for stream in self.http if since <= stream.begin <= until]
        failed = [why for _, _, why in done if why]
        return named | _counts(len(done), failed, [max([b - a for a, b, _ in done] + waiting, default=0.0)])


def _sum(parts: list[tuple[int, int, int, float]]) -> Json:
    sent, losses, duplicates, silences = zip(*parts, strict=True)
    counts = {"sent": sum(sent), "lost": sum(losses), "duplicates": sum(duplicates)}
    return {**counts, "broken": 0, "reasons": [], "silences": list(silences)}


def _counts(sent: int, reasons: list[str], silences: list[float]) -> Json:
    counts: Json = {"sent": sent, "lost": 0, "duplicates": 0, "broken": len(reasons)}
    return counts | {"reasons": sorted(set(reasons)), "silences": silences}


def _answer(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Send until the input ends."""
    streams = [Stream(**{**raw, "kind": Kind(raw["kind"])}) for raw in json.loads(sys.stdin.buffer.readline())]
    loop = Loop()
    try:
        groups = [Group(loop, stream) for stream in streams]
    except (OSError, LabError) as error:
        _answer(f"cannot open sockets: {error}")
        return 1
    deadline = time.monotonic() + READY_TIMEOUT * 0.8
    while not all(group.ready for group in groups):
        loop.turn()
        if time.monotonic() > deadline:
            _answer("not answered: " + ", ".join(group.stream.name for group in groups if not group.ready))
            return 1
    _answer({"ready": len(groups)})
    buffer = bytearray()
    ended = False

    def hear() -> None:
        nonlocal ended
        data = os.read(0, 65536)
        ended = not data
        buffer.extend(data)
        while b"\n" in buffer:
            line, _, remainder = bytes(buffer).partition(b"\n")
            buffer[:] = remainder
            question = json.loads(line)
            if "forget" in question:
                parts: list[Remembers] = [loop, *groups]
                for part in parts:
                    part.drop_before(question["forget"])
                continue
            since, until = question["since"], question["until"]
            streams = [group.report(since, until) for group in groups]
            _answer({"streams": streams, "stall": loop.stall(since, until)})

    loop.watch(0, hear)
    while not ended:
        loop.turn()
    return 0


if __name__ == "__main__":
    sys.exit(main())
