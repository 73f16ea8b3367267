"""Probes the tunnels to other clusters' gateways: sends probes in turn, receives answers, keeps the results.

Owns the thread that sends, and the probes in flight. `update` is called by the loop's thread in every pass,
`receive` by the thread that reads packets from the bridge, `report` by any. `mcagent.core.tunnel_probes` decides
what follows from an answer.
"""

from __future__ import annotations

import heapq
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mcagent.core import tunnel_probes as probes
from mcagent.core.failover.liveness import Peers
from mcagent.core.tunnel_probes import Examination, ProbeState
from mcagent.model.dataplane.resources import PeerKind, TunnelPort
from mcagent.model.errors import BackendError
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)

TICK = 0.1  # seconds: probes that are due within it are sent together


@dataclass(slots=True)
class _Tunnel:
    ofport: int
    bfd_up: bool
    since: float  # of `bfd_up`
    result: ProbeState = field(default_factory=ProbeState)
    full_due: float = 0.0

    @property
    def is_examined(self) -> bool:
        return self.result.examined is not None and self.result.examined.complete


@dataclass(frozen=True, slots=True)
class _Sent:
    name: str
    ofport: int
    at: float  # monotonic seconds
    full: bool = False  # of the largest size
    examines: tuple[float, int] | None = None  # the beginning of an examination, and the probe's number in it


class TunnelProbes(BackgroundLoop):
    """Results of probes of this gateway's tunnels. `start`, then `stop`."""

    def __init__(
        self,
        *,
        send: Callable[[Sequence[tuple[int, bytes]]], None],
        on: bool = True,
        changed: Callable[[], None] = lambda: None,
        answered: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send` sends frames out by ports.

        `changed` is called when the largest packets begin or cease to pass, when a tunnel has `probes.MEASURED`
        answers, and when its examination is complete; `answered` when a gateway begins to answer, or another
        cluster answers in its place.

        Without `on` no probe is sent.
        """
        super().__init__(self._probe_tunnels, name="tunnel-probes")
        self._send, self._on, self._changed, self._clock = send, on, changed, clock
        self._answered = answered
        self._inputs: tuple[object, object, int] = (None, None, 0)  # belongs to the loop's thread, as `_narrow`
        self._narrow: frozenset[str] = frozenset()
        self._lock = threading.Lock()  # guards all below
        self._tunnels: dict[str, _Tunnel] = {}
        self._due: list[tuple[float, str]] = []  # a heap; each tunnel is in it once
        self._examined: dict[str, float] = {}  # when to send the next probe of an examination, by tunnel
        self._mtu = 0
        self._usual = probes.EVERY  # seconds between probes of a tunnel
        self._sent: dict[bytes, _Sent] = {}  # in flight, oldest first

    def start(self) -> None:
        """Start the thread, unless probes are off."""
        if self._on:
            super().start()

    def report(self) -> Mapping[str, ProbeState]:
        """Return the results by tunnel, without tunnels that were never probed."""
        with self._lock:
            return {
                name: tunnel.result for name, tunnel in self._tunnels.items() if tunnel.result.answers is not None
            }

    def update(self, ports: Iterable[TunnelPort], peers: Peers, mtu: int) -> frozenset[str]:
        """Replace the tunnels; return the names of those that small packets pass, but not the largest.

        `mtu`: bytes of the largest IP packet in a tunnel; 0: unknown. Arguments must be the same objects while
        equal.
        """
        before = self._inputs
        if self._on and (before[0] is not ports or before[1] is not peers or before[2] != mtu):
            self._inputs = ports, peers, mtu
            self._take_tunnels(
                {port.name: port for port in ports if port.peer_kind is PeerKind.REMOTE}, peers, mtu
            )
        with self._lock:
            narrow = frozenset(name for name, tunnel in self._tunnels.items() if tunnel.result.full is False)
        self._narrow = self._narrow if self._narrow == narrow else narrow
        return self._narrow

    def _take_tunnels(self, ports: Mapping[str, TunnelPort], peers: Peers, mtu: int) -> None:
        now = self._clock()
        with self._lock:
            self._mtu = mtu
            before, self._tunnels = self._tunnels, {}
            added = []
            for name, port in ports.items():
                bfd_up = name in peers and peers[name].answering
                tunnel = before.get(name)
                if tunnel is None or tunnel.ofport != port.ofport:
                    tunnel = _Tunnel(port.ofport, bfd_up, now)
                    added.append(name)
                elif bfd_up and not tunnel.bfd_up and not tunnel.result.answers:  # perhaps another gateway now
                    tunnel.result = replace(tunnel.result, answers=None, tried=0)
                    added.append(name)
                elif tunnel.bfd_up and not bfd_up and tunnel.result.answers:
                    self._examine(name, tunnel, now)
                if bfd_up is not tunnel.bfd_up:
                    tunnel.bfd_up, tunnel.since = bfd_up, now
                tunnel.result = probes.with_size(tunnel.result, mtu)
                self._tunnels[name] = tunnel
            self._usual = probes.probe_period(len(ports))
            remaining = [(at, name) for at, name in self._due if name in ports and name not in added]
            self._due = [*remaining, *((now, name) for name in added)]
            heapq.heapify(self._due)
            self._examined = {name: at for name, at in self._examined.items() if name in ports}
        self.wake()

    def _examine(self, name: str, tunnel: _Tunnel, now: float) -> None:
        """Begin to examine a tunnel that BFD has lost, unless many are lost at once: this is no false alarm."""
        if now - tunnel.since < probes.EXAMINED_AFTER:
            return
        if name in self._examined or len(self._examined) < probes.EXAMINED_AT_ONCE:
            tunnel.result = replace(tunnel.result, examined=Examination(began=now))
            self._examined[name] = now

    def receive(self, port: int, frame: bytes) -> None:
        """Take an answer that arrived by a tunnel. A late one, or one to no probe of that tunnel, is ignored."""
        now, answer = self._clock(), probes.read_answer(frame)
        if answer is None:
            return
        token, answered_by = answer
        with self._lock:
            sent = self._sent.get(token)
            if sent is None or sent.ofport != port or now - sent.at > probes.TIMEOUT:
                return
            del self._sent[token]
            tunnel = self._tunnels.get(sent.name)
            if tunnel is None or tunnel.ofport != port:
                return
            before = tunnel.result
            if sent.examines is not None:
                tunnel.result = probes.with_examined(before, *sent.examines, answered=True)
                changed, answered = tunnel.is_examined, False
            else:
                if not before.answers:  # earlier probes may still be answered: they are not lost
                    self._sent = {key: probe for key, probe in self._sent.items() if probe.name != sent.name}
                tunnel.result = probes.with_answer(before, now - sent.at, full=sent.full, answered_by=answered_by)
                if sent.full:
                    tunnel.full_due = now + probes.full_probe_period(tunnel.result, self._usual)
                changed = before.full is False and tunnel.result.full is True
                changed = changed or (tunnel.result.sent - tunnel.result.lost == probes.MEASURED and not sent.full)
                answered = not before.answers or before.answered_by != answered_by
        if changed:
            self._changed()
        if answered:
            self._answered()

    def _probe_tunnels(self) -> float:
        """Send the probes that are due; return the seconds to the next ones."""
        with self._lock:
            changed = self._expire()
            batch = self._batch()
            due = [*(at for at, _ in self._due[:1]), *self._examined.values()]
            wait = min(due, default=math.inf) - self._clock()
        if changed:
            self._changed()
        try:
            if batch:
                self._send(batch)
        except BackendError as error:
            log.debug("%s", error)
            with self._lock:
                self._sent.clear()  # perhaps not sent: not counted as lost
        return max(TICK, min(wait, probes.RARELY))

    def _expire(self) -> bool:
        """Count overdue probes as lost; return whether a tunnel has ceased to pass the largest packets, or whether
        the examination of one is complete.
        """
        now, changed = self._clock(), False
        while self._sent:
            token, sent = next(iter(self._sent.items()))
            if now - sent.at <= probes.TIMEOUT:
                break
            del self._sent[token]
            tunnel = self._tunnels.get(sent.name)
            if tunnel is not None and tunnel.ofport == sent.ofport:
                before = tunnel.result
                if sent.examines is not None:
                    tunnel.result = probes.with_examined(before, *sent.examines, answered=False)
                    changed = changed or tunnel.is_examined
                    continue
                tunnel.result = probes.with_loss(before, full=sent.full, bfd_up=tunnel.bfd_up)
                if sent.full:
                    tunnel.full_due = now + probes.full_probe_period(tunnel.result, self._usual)
                changed = changed or (tunnel.result.full is False and before.full is not False)
        return changed

    def _batch(self) -> list[tuple[int, bytes]]:
        """Make the frames that are due, with their ports; at most as many as a Node may send per TICK."""
        now, frames = self._clock(), list[tuple[int, bytes]]()
        while self._due and self._due[0][0] <= now and len(frames) < max(1, probes.MOST * TICK):
            _, name = heapq.heappop(self._due)
            tunnel = self._tunnels[name]
            after = max(self._usual, probes.RARELY) if tunnel.result.answers is False else self._usual
            heapq.heappush(self._due, (probes.next_probe(now, after), name))
            full = bool(
                tunnel.result.answers and self._mtu and not tunnel.result.lost_in_row and now >= tunnel.full_due
            )
            if full:  # besides a small one
                tunnel.full_due = now + probes.FULL_EVERY  # until its result sets another time
                frames.append(self._probe(name, tunnel, now, full=True))
            frames.append(self._probe(name, tunnel, now, full=False))
        for name in [name for name, at in self._examined.items() if at <= now]:
            tunnel = self._tunnels[name]
            tunnel.result, examines = probes.with_examination(tunnel.result, now)
            frames.append(self._probe(name, tunnel, now, full=False, examines=examines))
            self._examined[name] = now + probes.EXAMINED_EVERY
            if examines[1] == probes.EXAMINED - 1:
                del self._examined[name]
        return frames

    def _probe(
        self, name: str, tunnel: _Tunnel, now: float, *, full: bool, examines: tuple[float, int] | None = None
    ) -> tuple[int, bytes]:
        token = secrets.token_bytes(8)
        self._sent[token] = _Sent(name, tunnel.ofport, now, full, examines)
        return tunnel.ofport, probes.probe_frame(token, self._mtu if full else 0)
