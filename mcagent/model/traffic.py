"""Which clusters get the new connections to an imported Service: the text of users, as a value.

    *                    all clusters, each by the number of its ready endpoints
    local > *            this cluster while it has ready endpoints, else the others
    east=3, west=1       three of four connections to east, and one to west
    east > west          west while east has no ready endpoint

Clusters between two ">" share: by their weights or, where none is written, by their ready endpoints. What stands
after a ">" counts while nothing before it has a ready endpoint. "*" is every cluster that is not named, each for
itself. Clusters that are not named where there is no "*" come last. Knows no endpoints but their number.

That number is what a cluster says where its endpoints stand behind one ClusterIP. Others are not trusted: whatever
they say counts as `MAX_READY` at most.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

TRAFFIC_ANNOTATION = "mcagent.io/traffic"  # on a ServiceImport
EXPORTED_TRAFFIC_ANNOTATION = "mcagent.io/exported-traffic"  # on a ServiceImport: what its exporters say
READY_ANNOTATION = "mcagent.io/ready-endpoints"  # of an EndpointSlice: how many its cluster has for the Service
MAX_READY = 1000  # as many as a cluster may export of a Service one by one (members.maxEndpoints)
ANY = "any"  # the text that leaves the choice to kube-proxy: among all endpoints alike
LOCAL, OTHERS = "local", "*"
MAX_WEIGHT = 1000
MAX_TEXT = 4096  # characters
_CLUSTER = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|\*")
_ALLOWED = '"any", or clusters with ">" (one after the other) and "," (shared) between, as "local > a=3, b > *"'


@dataclass(frozen=True, slots=True)
class Share:
    """A cluster's ID ("local": this one, "*": those that are not named), and its weight within its rank."""

    cluster: str
    weight: int | None = None  # None: as many as it has ready endpoints

    def __str__(self) -> str:
        """Return the text that says this."""
        return self.cluster if self.weight is None else f"{self.cluster}={self.weight}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Clusters by rank. None at all: kube-proxy chooses."""

    ranks: tuple[tuple[Share, ...], ...] = ()

    def __str__(self) -> str:
        """Return the text that says this."""
        return " > ".join(", ".join(map(str, rank)) for rank in self.ranks) or ANY

    @property
    def names_clusters(self) -> bool:
        """Tell whether it is about single clusters, other than the one that imports."""
        return any(share.cluster not in (LOCAL, OTHERS) for rank in self.ranks for share in rank)

    def weights(self, ready: Mapping[str, int], own: str) -> list[dict[str, int]]:
        """Return the weights of clusters by rank, the first one first.

        `ready`: how many ready endpoints each has; `own` is this cluster's ID.
        """
        named = {own if share.cluster == LOCAL else share.cluster for rank in self.ranks for share in rank}
        unnamed = [cluster for cluster in ready if cluster not in named]
        ranks = [_weights(rank, ready, unnamed, own) for rank in self.ranks]
        return ranks if OTHERS in named else [*ranks, {cluster: ready[cluster] for cluster in unnamed}]


def _weights(rank: tuple[Share, ...], ready: Mapping[str, int], unnamed: list[str], own: str) -> dict[str, int]:
    weights: dict[str, int] = {}
    for share in rank:
        named = own if share.cluster == LOCAL else share.cluster
        for cluster in unnamed if share.cluster == OTHERS else (named,):
            number = ready.get(cluster, 0)
            weights[cluster] = number if share.weight is None or not number else share.weight
    return {cluster: weight for cluster, weight in weights.items() if weight}


def read_traffic(text: str) -> Traffic:
    """Return what the text says. Raises ValueError that says what is allowed."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"must have at most {MAX_TEXT} characters, has {len(text)}")
    if text.strip() == ANY:
        return Traffic()
    ranks = tuple(tuple(_share(word.strip()) for word in rank.split(",")) for rank in text.split(">"))
    names = [share.cluster for rank in ranks for share in rank]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f'must name each cluster once, has "{name}" {names.count(name)} times')
    for rank in ranks:
        _one_measure(rank)
    return Traffic(ranks)


def _one_measure(rank: tuple[Share, ...]) -> None:
    """Refuse what shares by weights and by ready endpoints at once. 0 leaves a cluster out of either."""
    without = [share.cluster for share in rank if share.weight is None]
    if without and any(share.weight for share in rank):
        text = ", ".join(map(str, rank))
        raise ValueError(
            f'must have weights for all clusters that share or for none, "{without[0]}" of "{text[:80]}" has none'
        )


def _share(word: str) -> Share:
    cluster, equals, weight = (part.strip() for part in word.partition("="))
    if not _CLUSTER.fullmatch(cluster):
        raise ValueError(f'must be {_ALLOWED}; "{word[:80]}" is not a cluster')
    if not equals:
        return Share(cluster)
    if not (weight.isascii() and weight.isdecimal()) or len(weight) > 4 or int(weight) > MAX_WEIGHT:
        raise ValueError(f'must have weights from 0 to {MAX_WEIGHT}, "{word[:80]}" has not')
    return Share(cluster, int(weight))


def read_ready(text: str) -> int:
    """Return how many ready endpoints a cluster says it has. Raises ValueError that says what is allowed."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 6:
        raise ValueError(f"must be a whole number of at most 6 digits, of which {MAX_READY} count")
    return min(int(text), MAX_READY)


def told_ready(before: int | None, count: int) -> int:
    """Return how many ready endpoints a cluster tells others of: what it told before while that is about right.

    What differs by more than an eighth is told, and whether there are any. A thousand Pods that come one after the
    other are told of some fifty times.
    """
    now = min(count, MAX_READY)
    close = before is not None and bool(before) == bool(now) and 8 * abs(now - before) <= before
    return before if close and before is not None else now
