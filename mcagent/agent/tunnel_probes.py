"""Probes the tunnels to other clusters' gateways: sends in turn, hears answers, and keeps what came of it.

Owns the thread that sends, and the probes on their way. `look` is called by the loop's thread in every pass,
`heard` by the thread that follows the bridge, `report` by any. What follows from an answer is decided by
`mcagent.core.tunnel_probes`.
"""

from __future__ import annotations

import heapq
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mcagent.core import tunnel_probes as probes
from mcagent.core.failover.liveness import Peers
from mcagent.core.tunnel_probes import ProbeState
from mcagent.model.errors import BackendError
from mcagent.model.resources import PeerKind, TunnelPort
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

TICK = 0.1  # seconds: what is due until then goes out together


@dataclass(slots=True)
class _Tunnel:
    ofport: int
    bfd_up: bool
    known: ProbeState = field(default_factory=ProbeState)
    full_due: float = 0.0


@dataclass(frozen=True, slots=True)
class _Sent:
    name: str
    ofport: int
    at: float
    full: bool


class TunnelProbes:
    """What probes say of this gateway's tunnels. `start`, then `stop`."""

    def __init__(
        self,
        *,
        send: Callable[[Sequence[tuple[int, bytes]]], None],
        on: bool = True,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send` sends frames out by ports; `changed` is called when the largest packets begin, or cease, to pass.

        Without `on` none is sent.
        """
        self._send, self._on, self._changed, self._clock = send, on, changed, clock
        self._known: tuple[object, object, int] = (None, None, 0)  # of the loop's thread
        self._narrow: frozenset[str] = frozenset()
        self._lock = threading.Condition()  # of all below
        self._tunnels: dict[str, _Tunnel] = {}
        self._due: list[tuple[float, str]] = []  # a heap; a tunnel that is there is in it once
        self._mtu = 0
        self._usual = probes.EVERY  # seconds between probes of a tunnel
        self._sent: dict[bytes, _Sent] = {}  # on their way, the first one first
        self._closed = threading.Event()
        self._thread = Supervised(self._run, name="tunnel-probes", until=self._closed)

    def start(self) -> None:
        """Begin to send."""
        if self._on:
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._closed.set()
        with self._lock:
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join()

    def report(self) -> Mapping[str, ProbeState]:
        """Return what is known, by tunnel; of none that was never probed."""
        with self._lock:
            return {name: one.known for name, one in self._tunnels.items() if one.known.answers is not None}

    def look(self, ports: Iterable[TunnelPort], peers: Peers, mtu: int) -> frozenset[str]:
        """Take the tunnels that there are; return those that the largest packets do not pass, small ones do.

        `mtu`: bytes of the largest IP packet in a tunnel; 0: not known. All are the same objects while equal.
        """
        before = self._known
        if self._on and (before[0] is not ports or before[1] is not peers or before[2] != mtu):
            self._known = ports, peers, mtu
            self._see({port.name: port for port in ports if port.peer_kind is PeerKind.REMOTE}, peers, mtu)
        with self._lock:
            narrow = frozenset(name for name, one in self._tunnels.items() if one.known.full is False)
        self._narrow = self._narrow if self._narrow == narrow else narrow
        return self._narrow

    def _see(self, ports: Mapping[str, TunnelPort], peers: Peers, mtu: int) -> None:
        now = self._clock()
        with self._lock:
            self._mtu = mtu
            before, self._tunnels = self._tunnels, {}
            fresh = []
            for name, port in ports.items():
                bfd_up = name in peers and peers[name].answering
                one = before.get(name)
                if one is None or one.ofport != port.ofport:
                    one = _Tunnel(port.ofport, bfd_up)
                    fresh.append(name)
                one.bfd_up, one.known = bfd_up, probes.with_size(one.known, mtu)
                self._tunnels[name] = one
            self._usual = probes.probe_period(len(ports))
            spread = self._usual / max(1, len(fresh))
            kept = [(at, name) for at, name in self._due if name in ports and name not in fresh]
            self._due = [*kept, *((now + spread * place, name) for place, name in enumerate(fresh))]
            heapq.heapify(self._due)
            self._lock.notify()

    def heard(self, port: int, found: bytes) -> None:
        """Take an answer that came in by a tunnel. What was not asked there, or comes too late, says nothing."""
        now, token = self._clock(), probes.token_of(found)
        with self._lock:
            sent = self._sent.get(token) if token is not None else None
            if token is None or sent is None or sent.ofport != port or now - sent.at > probes.TIMEOUT:
                return
            del self._sent[token]
            one = self._tunnels.get(sent.name)
            if one is None or one.ofport != port:
                return
            before = one.known
            if not before.answers:  # those before it were perhaps not answered yet: that is no loss
                self._sent = {which: each for which, each in self._sent.items() if each.name != sent.name}
            one.known = probes.with_answer(before, now - sent.at, full=sent.full)
            if sent.full:
                one.full_due = now + probes.full_probe_period(one.known, self._usual)
            changed = before.full is False and one.known.full is True
        if changed:
            self._changed()

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                narrow = self._lose()
                batch = self._batch()
                wait = (self._due[0][0] if self._due else math.inf) - self._clock()
            if narrow:
                self._changed()
            try:
                if batch:
                    self._send(batch)
            except BackendError as error:
                log.debug("%s", error)
                with self._lock:
                    self._sent.clear()  # not sent, or not to be heard: no loss
            with self._lock:
                if not self._closed.is_set():
                    self._lock.wait(max(TICK, min(wait, probes.RARELY)))

    def _lose(self) -> bool:
        """Count what is overdue as lost; tell whether the largest packets have ceased to pass somewhere."""
        now, narrow = self._clock(), False
        while self._sent:
            token, sent = next(iter(self._sent.items()))
            if now - sent.at <= probes.TIMEOUT:
                break
            del self._sent[token]
            one = self._tunnels.get(sent.name)
            if one is not None and one.ofport == sent.ofport:
                before = one.known
                one.known = probes.with_loss(before, full=sent.full, bfd_up=one.bfd_up)
                if sent.full:
                    one.full_due = now + probes.full_probe_period(one.known, self._usual)
                narrow = narrow or (one.known.full is False and before.full is not False)
        return narrow

    def _batch(self) -> list[tuple[int, bytes]]:
        """Return the frames that are due, with their ports: no more at once than keep to what a Node may send."""
        now, found = self._clock(), list[tuple[int, bytes]]()
        while self._due and self._due[0][0] <= now and len(found) < max(1, probes.MOST * TICK):
            _, name = heapq.heappop(self._due)
            one = self._tunnels[name]
            after = max(self._usual, probes.RARELY) if one.known.answers is False else self._usual
            heapq.heappush(self._due, (now + after, name))
            full = bool(one.known.answers and self._mtu and not one.known.lost_in_row and now >= one.full_due)
            if full:  # with a small one beside it
                one.full_due = now + probes.FULL_EVERY  # unless something comes of it before
                found.append(self._probe(name, one, now, full=True))
            found.append(self._probe(name, one, now, full=False))
        return found

    def _probe(self, name: str, one: _Tunnel, now: float, *, full: bool) -> tuple[int, bytes]:
        token = secrets.token_bytes(8)
        self._sent[token] = _Sent(name, one.ofport, now, full)
        return one.ofport, probes.probe_frame(token, self._mtu if full else 0)
