"""Probes through tunnels to other clusters' gateways: round trip, loss, whether the largest packets pass. Pure.

A probe is a frame inside the tunnel; the bridge at its other end sends it back (`flows.pipeline.classify`),
without its agent. Antrea's gateways and older versions do not: of one that has never answered, no loss is told.
One that ceases to answer while BFD goes on through the same tunnel does not answer any more, which is no loss.

A frame, in network byte order: Ethernet header with the type `ETHERTYPE_PROBE`; 4 bytes `mcP` and the version; 8
random bytes that tell the probe from others, and that a forged answer would have to guess; zeros up to its size.
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
MOST = 50  # probes a second by one Node, about; with more tunnels than that, each is probed more rarely
TIMEOUT = 2.0  # seconds after which a probe counts as lost
RARELY = 60.0  # seconds between probes of who does not answer
TRIES = 5  # probes until somebody counts as not answering at first
GIVEN_UP = 15  # probes lost in a row after which somebody whose BFD is up does not answer any more
KEPT = 60  # of so many last probes round trip and loss are shown
FULL_EVERY = 60.0  # seconds between probes of full size while they pass
FULL_LOST_EVERY = 10.0  # and while they do not
FULL_LOST = 3  # so many lost in a row, while small ones are answered: they do not pass
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)  # seconds

_HEAD = struct.Struct("!6s6sH4s8s")  # destination, source, type; mark and version, token
_MARK = b"mcP\x01"
_ETHERNET = 14  # bytes of the header
_SMALL = 60  # bytes: the least of Ethernet, without its checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What is known of a tunnel by probes. Counts are of those answered or lost, since one was first answered.

    `answers`: None until it is known; False: it does not, or not any more. `mtu`: bytes of the IP packet that a
    probe of full size stands for; `full`: whether these pass (None: not known). `counts` has one more than
    BUCKETS.
    """

    answers: bool | None = None
    tried: int = 0  # without an answer, until `answers` is known
    sent: int = 0
    lost: int = 0
    lost_in_row: int = 0
    recent: tuple[float | None, ...] = ()  # round trips in seconds, None: lost; the last one last
    counts: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    total: float = 0.0  # seconds of all round trips
    mtu: int = 0
    full: bool | None = None
    full_sent: int = 0
    full_lost: int = 0
    full_lost_in_row: int = 0

    @property
    def round_trip(self) -> float | None:
        """The median of the last round trips, in seconds; None: there is none."""
        found = [one for one in self.recent if one is not None]
        return median(found) if found and self.answers else None

    @property
    def loss(self) -> float | None:
        """Which part of the last probes was lost; None: it does not answer probes."""
        return self.recent.count(None) / len(self.recent) if self.recent and self.answers else None

    def buckets(self) -> Sequence[tuple[str, float]]:
        """Return cumulative counts of round trips by upper bound, as Prometheus wants them."""
        bounds = [*map(str, BUCKETS), "+Inf"]
        return [(bound, float(count)) for bound, count in zip(bounds, accumulate(self.counts), strict=True)]


def frame(token: bytes, mtu: int = 0) -> bytes:
    """Return a probe; with `mtu` one as large as an IP packet of so many bytes makes a frame."""
    head = _HEAD.pack(MAC_PROBE.to_bytes(6), HOST_MAC.to_bytes(6), ETHERTYPE_PROBE, _MARK, token)
    return head.ljust(max(_SMALL, _ETHERNET + mtu), b"\0")


def token_of(found: bytes) -> bytes | None:
    """Return the token of an answer; None if it is none, or of another version."""
    if len(found) < _HEAD.size:
        return None
    destination, _, kind, mark, token = _HEAD.unpack_from(found)
    return token if (destination, kind, mark) == (MAC_ANSWER.to_bytes(6), ETHERTYPE_PROBE, _MARK) else None


def is_probe(found: bytes) -> bool:
    """Tell whether a frame is of the kind of probes and their answers."""
    return len(found) >= _ETHERNET and int.from_bytes(found[12:14]) == ETHERTYPE_PROBE


def period(tunnels: int) -> float:
    """Return the seconds between probes of a tunnel, where a Node has so many."""
    return max(EVERY, tunnels / MOST)


def full_period(one: Probed, usual: float) -> float:
    """Return the seconds until the next probe of full size; `usual`: between others."""
    if one.full is False:
        return max(FULL_LOST_EVERY, usual)
    return max(FULL_EVERY, usual) if one.full and not one.full_lost_in_row else usual


def answered(one: Probed, seconds: float, *, full: bool) -> Probed:
    """Return what is known after an answer that took so long."""
    if full:
        return replace(one, full=True, full_sent=one.full_sent + 1, full_lost_in_row=0)
    counts = list(one.counts)
    counts[bisect_left(BUCKETS, seconds)] += 1
    return replace(
        one,
        answers=True,
        tried=0,
        sent=one.sent + 1,
        lost_in_row=0,
        recent=(*one.recent, seconds)[-KEPT:],
        counts=tuple(counts),
        total=one.total + seconds,
    )


def unanswered(one: Probed, *, full: bool, bfd_up: bool) -> Probed:
    """Return what is known after a probe that nothing answered. `bfd_up`: BFD passes that tunnel now."""
    if not one.answers:
        tried = one.tried + (not full)
        return replace(one, tried=tried, answers=False if tried >= TRIES else one.answers)
    if full:
        in_row = one.full_lost_in_row + 1
        narrow = in_row >= FULL_LOST and not one.lost_in_row
        return replace(
            one,
            full=False if narrow else one.full,
            full_sent=one.full_sent + 1,
            full_lost=one.full_lost + 1,
            full_lost_in_row=in_row,
        )
    in_row = one.lost_in_row + 1
    if bfd_up and in_row >= GIVEN_UP:
        return replace(one, answers=False, lost_in_row=0, recent=(), full=None, full_lost_in_row=0)
    recent = (*one.recent, None)[-KEPT:]
    return replace(one, sent=one.sent + 1, lost=one.lost + 1, lost_in_row=in_row, recent=recent)


def of_size(one: Probed, mtu: int) -> Probed:
    """Return what is known where the largest packets have this size from now on."""
    return one if one.mtu == mtu else replace(one, mtu=mtu, full=None, full_lost_in_row=0)
