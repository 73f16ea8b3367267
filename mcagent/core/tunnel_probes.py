"""Probes through the tunnels to remote gateways: round trip time, loss, whether the largest packets pass. Pure.

A probe is a frame inside the tunnel. The bridge at the other end returns it without its agent
(`flows.pipeline.steps.classify`), with the fingerprint of its cluster as source address, so that a gateway that
answers for another cluster than the one that claims its address is noticed. Gateways of Antrea and of older
versions do not answer probes; without a first answer no loss is reported. A gateway that stops answering while BFD
is up through the same tunnel no longer supports probes, which is no loss.

A frame, in network byte order: Ethernet header with the type `ETHERTYPE_PROBE`; 4 bytes `mcP` and the version; 8
random bytes that identify the probe, and that a forged answer would have to guess; zeros up to its size.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median

from flows.pipeline.registers import ETHERTYPE_PROBE, HOST_MAC, MAC_ANSWER, MAC_PROBE

EVERY = 1.0  # seconds between probes of a tunnel
MOST = 50  # probes per second of one Node, about; with more tunnels, each is probed more rarely
TIMEOUT = 2.0  # seconds after which a probe counts as lost
RARELY = 60.0  # seconds between probes of a peer that does not answer probes
TRIES = 5  # probes without an answer after which a new peer counts as not answering
GIVEN_UP = 15  # probes lost in a row after which a peer whose BFD is up counts as no longer answering
KEPT = 60  # the last probes from which round trip time and loss are computed
MEASURED = 20  # answers from which on a high round trip is a property of the path
EXAMINED = 20  # probes that examine a tunnel after BFD has lost it ...
EXAMINED_EVERY = 0.1  # ... with so many seconds between them ...
EXAMINED_AFTER = 10.0  # ... of a tunnel that was up for so many seconds: right after an outage Nodes are busy ...
EXAMINED_AT_ONCE = 20  # ... and the most tunnels that are examined at the same time
FULL_EVERY = 60.0  # seconds between probes of full size while they pass
FULL_LOST_EVERY = 10.0  # seconds between probes of full size while they do not pass
FULL_LOST = 3  # probes of full size lost in a row, while small ones are answered, after which they do not pass
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)  # seconds

_HEAD = struct.Struct("!6s6sH4s8s")  # destination, source, type; mark and version, token
_MARK = b"mcP\x01"
_ETHERNET = 14  # bytes of the header
_SMALL = 60  # bytes: the minimum of Ethernet, without its checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Probes of a tunnel that BFD has just lost, at the time `began` (monotonic seconds).

    `results`: seconds from then to each probe, and whether it was answered (None: not known yet).
    """

    began: float
    results: tuple[tuple[float, bool | None], ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all probes were sent and are answered or lost."""
        return len(self.results) == EXAMINED and all(answered is not None for _, answered in self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeState:
    """The results of the probes of one tunnel. Counts start with the first answer.

    `answers`: whether the peer answers probes (None: unknown). `mtu`: the size in bytes of the IP packet that a
    probe of full size represents; `full`: whether these pass (None: unknown). `counts`: round trips by bucket,
    with one element more than BUCKETS. `answered_by`: the fingerprint in the last answer
    (`model.net.cluster_fingerprint`); None: no answer, or by a version that sends none. `examined`: the last
    examination, whose probes count nowhere else.
    """

    answers: bool | None = None
    answered_by: int | None = None
    tried: int = 0  # probes without an answer while `answers` is unknown
    sent: int = 0
    lost: int = 0
    lost_in_row: int = 0
    recent: tuple[float | None, ...] = ()  # round trips in seconds, the oldest first; None: lost
    counts: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    total: float = 0.0  # seconds of all round trips
    mtu: int = 0
    full: bool | None = None
    full_sent: int = 0
    full_lost: int = 0
    full_lost_in_row: int = 0
    examined: Examination | None = None

    @property
    def round_trip(self) -> float | None:
        """The median of the recent round trips in seconds; None without an answer."""
        round_trips = [seconds for seconds in self.recent if seconds is not None]
        return median(round_trips) if round_trips and self.answers else None

    @property
    def loss(self) -> float | None:
        """The lost share (0 to 1) of the recent probes; None if the peer does not answer probes."""
        return self.recent.count(None) / len(self.recent) if self.recent and self.answers else None

    def buckets(self) -> Sequence[tuple[str, float]]:
        """Return cumulative counts of round trips by upper bound, as a Prometheus histogram requires."""
        bounds = [*map(str, BUCKETS), "+Inf"]
        return [(bound, float(count)) for bound, count in zip(bounds, accumulate(self.counts), strict=True)]


def probe_frame(token: bytes, mtu: int = 0) -> bytes:
    """Build a probe; with `mtu`, as large as a frame with an IP packet of that many bytes."""
    head = _HEAD.pack(MAC_PROBE.to_bytes(6), HOST_MAC.to_bytes(6), ETHERTYPE_PROBE, _MARK, token)
    return head.ljust(max(_SMALL, _ETHERNET + mtu), b"\0")


def read_answer(frame: bytes) -> tuple[bytes, int | None] | None:
    """Return the token of an answer and the fingerprint of the cluster that answers (None: not sent).

    None if the frame is no answer, or of another version.
    """
    if len(frame) < _HEAD.size:
        return None
    destination, source, kind, mark, token = _HEAD.unpack_from(frame)
    if (destination, kind, mark) != (MAC_ANSWER.to_bytes(6), ETHERTYPE_PROBE, _MARK):
        return None
    fingerprint = int.from_bytes(source)
    return token, fingerprint if fingerprint != HOST_MAC else None


def is_probe(frame: bytes) -> bool:
    """Tell whether a frame is a probe or an answer, by its Ethernet type."""
    return len(frame) >= _ETHERNET and int.from_bytes(frame[12:14]) == ETHERTYPE_PROBE


def probe_period(tunnels: int) -> float:
    """Return the seconds between probes of one tunnel on a Node with this number of tunnels."""
    return max(EVERY, tunnels / MOST)


def next_probe(now: float, period: float) -> float:
    """Return when to probe a tunnel again that is probed now: at the next multiple of the period.

    So tunnels of one period are probed together, and the agent and ovs-vswitchd wake up once for all of them.
    """
    return (now // period + 1) * period


def full_probe_period(state: ProbeState, period: float) -> float:
    """Return the seconds until the next probe of full size. `period`: seconds between small probes."""
    if state.full is False:
        return max(FULL_LOST_EVERY, period)
    return max(FULL_EVERY, period) if state.full and not state.full_lost_in_row else period


def with_answer(state: ProbeState, seconds: float, *, full: bool, answered_by: int | None = None) -> ProbeState:
    """Return the state after an answer with this round trip time in seconds, by this cluster (a fingerprint)."""
    if full:
        return replace(
            state, full=True, full_sent=state.full_sent + 1, full_lost_in_row=0, answered_by=answered_by
        )
    counts = list(state.counts)
    counts[bisect_left(BUCKETS, seconds)] += 1
    return replace(
        state,
        answers=True,
        answered_by=answered_by,
        tried=0,
        sent=state.sent + 1,
        lost_in_row=0,
        recent=(*state.recent, seconds)[-KEPT:],
        counts=tuple(counts),
        total=state.total + seconds,
    )


def with_loss(state: ProbeState, *, full: bool, bfd_up: bool) -> ProbeState:
    """Return the state after a lost probe. `bfd_up`: BFD is up through the tunnel."""
    if not state.answers:
        tried = state.tried + (not full)
        return replace(state, tried=tried, answers=False if tried >= TRIES else state.answers)
    if full:
        in_row = state.full_lost_in_row + 1
        narrow = in_row >= FULL_LOST and not state.lost_in_row
        return replace(
            state,
            full=False if narrow else state.full,
            full_sent=state.full_sent + 1,
            full_lost=state.full_lost + 1,
            full_lost_in_row=in_row,
        )
    in_row = state.lost_in_row + 1
    if bfd_up and in_row >= GIVEN_UP:
        return replace(state, answers=False, lost_in_row=0, recent=(), full=None, full_lost_in_row=0)
    recent = (*state.recent, None)[-KEPT:]
    return replace(state, sent=state.sent + 1, lost=state.lost + 1, lost_in_row=in_row, recent=recent)


def with_examination(state: ProbeState, now: float) -> tuple[ProbeState, tuple[float, int]]:
    """Return the state after one more probe of the examination, and what `with_examined` takes for it."""
    examined = state.examined or Examination(began=now)
    results = (*examined.results, (now - examined.began, None))
    return replace(state, examined=replace(examined, results=results)), (examined.began, len(results) - 1)


def with_examined(state: ProbeState, began: float, number: int, *, answered: bool) -> ProbeState:
    """Return the state after the result of a probe of the examination that began at this time, by its number."""
    examined = state.examined
    if examined is None or examined.began != began:  # another one has begun since
        return state
    results = list(examined.results)
    results[number] = (results[number][0], answered)
    return replace(state, examined=replace(examined, results=tuple(results)))


def with_size(state: ProbeState, mtu: int) -> ProbeState:
    """Return the state for another size of the largest packets, in bytes."""
    return state if state.mtu == mtu else replace(state, mtu=mtu, full=None, full_lost_in_row=0)
