"""How well this cluster reaches another one: what gateways report, members pass on, and the leader shows.

Owns the form in the API: the status of a Gateway, and the annotation `mcagent.io/links` of a
MemberClusterAnnounce, which comes from other clusters and is not trusted. Knows no tunnel and no page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

from mcagent.model.errors import InputError
from mcagent.model.parsing.document import decode
from mcagent.model.parsing.field import Field, printable
from mcagent.model.parsing.granted import MAX_REFUSED

ANNOTATION = "mcagent.io/links"
MAX_REPORTED = 64  # links that a member reports to the leader: those that tell most
MAX_READ = 1024  # of a Gateway; more than clusters in a ClusterSet
MAX_TEXT = 32 * 1024  # characters of the annotation that are read
MAX_WHY = 160
MAX_ANSWERS = 8  # gateways of a link whose answers are reported
_MAX_RATE = 10**15
_MAX_ROUND_TRIP = 10**9  # microseconds
_FINGERPRINT = re.compile("[0-9a-f]{12}")
_MAX_TUNNELS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLink:
    """The way to another cluster. `since`: when a tunnel last went up or down (RFC 3339, UTC; "" if not known).

    `bytes_per_second` is of both directions together, and only about right, as `round_trip_micros` is, of the
    slowest tunnel (0: not measured): they are written rarely. `answers`: the
    addresses of gateways that answer probes, each with the fingerprint of the cluster that answers there
    (`fingerprint_text`), sorted. `refused`: the Pod CIDRs of the cluster that this gateway does not use, sorted.
    """

    cluster: str
    live: int
    tunnels: int
    since: str = ""
    why: str = ""  # a tunnel that is not live: what is the matter
    bytes_per_second: int = 0
    round_trip_micros: int = 0
    one_way: int = 0  # tunnels that are down whose peer is heard, and does not hear this gateway (BFD init)
    silent: int = 0  # tunnels that count as live although no packet ever came from the peer
    answers: tuple[tuple[str, str], ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def up(self) -> bool:
        """Whether all tunnels are live, and there is one."""
        return 0 < self.live == self.tunnels


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReport:
    """What an agent reports beside links: fields of a Gateway's status, sorted; the CRD describes them."""

    cluster_id: str = ""
    antrea_clusters: tuple[str, ...] = ()
    unreachable_gateways: tuple[str, ...] = ()
    encryption_error: str = ""  # why it cannot encrypt as configured
    tunnel_mtu: int = 0  # bytes; 0: unknown
    export_addresses: bool = False  # it serves exported Services at their export addresses
    pod_prefixes: bool = False  # it translates Pod CIDRs to virtual ones


NO_REPORT = GatewayReport()


def fingerprint_text(fingerprint: int) -> str:
    """Return the fingerprint of a cluster (`model.net.cluster_fingerprint`) as reports have it."""
    return f"{fingerprint:012x}"


def to_json(link: ClusterLink) -> dict[str, object]:
    """Return a link as the API has it."""
    fields: dict[str, object] = {"clusterID": link.cluster, "live": link.live, "tunnels": link.tunnels}
    if link.since:
        fields["since"] = link.since
    if link.why:
        fields["why"] = link.why[:MAX_WHY]
    if link.bytes_per_second:
        fields["bytesPerSecond"] = link.bytes_per_second
    if link.round_trip_micros:
        fields["roundTripMicros"] = link.round_trip_micros
    if link.one_way:
        fields["oneWay"] = link.one_way
    if link.silent:
        fields["silent"] = link.silent
    if link.answers:
        fields["answers"] = dict(link.answers[:MAX_ANSWERS])
    if link.refused:
        fields["refused"] = list(link.refused[:MAX_REFUSED])
    return fields


def read(items: object, limit: int = MAX_READ) -> tuple[ClusterLink, ...]:
    """Return the links of a JSON value, the first `limit`. What is wrong is left out; nothing is raised."""
    by_cluster: dict[str, ClusterLink] = {}
    for item in items[:limit] if isinstance(items, list | tuple) else ():
        try:
            link = _link(Field("link", item))
        except InputError:
            continue
        by_cluster.setdefault(link.cluster, link)
    return tuple(by_cluster.values())


def read_text(text: str) -> tuple[ClusterLink, ...]:
    """Return the links of the annotation, which another cluster wrote. Nothing is raised."""
    if not text or len(text) > MAX_TEXT:
        return ()
    try:
        return read(decode(text), MAX_REPORTED)
    except ValueError:
        return ()


def as_text(links: Iterable[ClusterLink]) -> str:
    """Return the annotation: the same for equal links."""
    return json.dumps([to_json(link) for link in links], separators=(",", ":"))


def merged(reports: Iterable[Sequence[ClusterLink]]) -> tuple[ClusterLink, ...]:
    """Return what several gateways of a cluster report together: a link for each other cluster, by name."""
    by_cluster: dict[str, list[ClusterLink]] = {}
    for report in reports:
        for link in report:
            by_cluster.setdefault(link.cluster, []).append(link)
    return tuple(_one(cluster, links) for cluster, links in sorted(by_cluster.items()))


def most_telling(links: Iterable[ClusterLink], limit: int = MAX_REPORTED) -> tuple[ClusterLink, ...]:
    """Return at most `limit` links, by name: first those that are not up, then those with most traffic.

    Their annotation is not longer than is read.
    """
    ranked = sorted(links, key=lambda link: (link.up, -link.bytes_per_second, link.cluster))[:limit]
    lengths = accumulate(len(as_text([link])) - 1 for link in ranked)  # of the list to here, without its end
    fit = takewhile(lambda pair: pair[1] < MAX_TEXT, zip(ranked, lengths, strict=True))
    return tuple(sorted((link for link, _ in fit), key=lambda link: link.cluster))


def settled(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return numbers by cluster that change only when they changed by more than half: each change is a write."""
    return {cluster: _settled(before.get(cluster, 0), rate) for cluster, rate in now.items()}


def _settled(before: int, now: int) -> int:
    if abs(now - before) <= before / 2:
        return before
    digits = max(0, len(str(now)) - 2)  # two significant digits
    return round(now, -digits)


def _one(cluster: str, links: list[ClusterLink]) -> ClusterLink:
    worst = min(links, key=lambda link: (link.live - link.tunnels, link.why))
    return ClusterLink(
        cluster=cluster,
        live=sum(link.live for link in links),
        tunnels=sum(link.tunnels for link in links),
        since=max(link.since for link in links),
        why=worst.why,
        bytes_per_second=sum(link.bytes_per_second for link in links),
        round_trip_micros=max(link.round_trip_micros for link in links),
        one_way=sum(link.one_way for link in links),
        silent=sum(link.silent for link in links),
        answers=tuple(sorted({answer for link in links for answer in link.answers}))[:MAX_ANSWERS],
        refused=tuple(sorted({cidr for link in links for cidr in link.refused}))[:MAX_REFUSED],
    )


def _link(field: Field) -> ClusterLink:
    rate, round_trip = field.get("bytesPerSecond"), field.get("roundTripMicros")
    one_way, silent = field.get("oneWay"), field.get("silent")
    tunnels = field.get("tunnels").integer(0, _MAX_TUNNELS)
    live = field.get("live").integer(0, tunnels)
    return ClusterLink(
        cluster=field.get("clusterID").name(),
        live=live,
        tunnels=tunnels,
        since=field.get("since").timestamp(),
        why=printable(field.get("why").text(""), MAX_WHY),
        bytes_per_second=0 if rate.absent else rate.integer(0, _MAX_RATE),
        round_trip_micros=0 if round_trip.absent else round_trip.integer(0, _MAX_ROUND_TRIP),
        one_way=0 if one_way.absent else one_way.integer(0, tunnels - live),
        silent=0 if silent.absent else silent.integer(0, live),
        answers=_answers(field.get("answers")),
        refused=_refused(field.get("refused")),
    )


def _answers(field: Field) -> tuple[tuple[str, str], ...]:
    """Return the answers of a link. Raises InputError."""
    if field.absent:
        return ()
    if not isinstance(field.value, Mapping):
        raise field.error("must be an object: a fingerprint by the address of each gateway")
    answers = sorted(field.value.items())[:MAX_ANSWERS]
    for address, fingerprint in answers:
        Field(field.subject, address, field.path).address()
        if not isinstance(fingerprint, str) or not _FINGERPRINT.fullmatch(fingerprint):
            raise field.error("must have 12 hexadecimal digits for each address, as 1a2b3c4d5e6f")
    return tuple(answers)


def _refused(field: Field) -> tuple[str, ...]:
    """Return the CIDRs that are not used. Raises InputError."""
    if field.absent:
        return ()
    return tuple(sorted(str(item.network()[0]) for item in field.each(MAX_REFUSED)))
