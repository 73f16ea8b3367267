"""Which clusters get the new connections to an imported Service: the text of users, as a value.

    local > *            this cluster while it has ready endpoints, else the others
    east=3, west=1       three of four connections to east, and one to west
    east > west          west while east has no ready endpoint

Clusters between two ">" share, by their weights (1 where none is told); what stands after a ">" counts while
nothing before it has a ready endpoint. "*" is every cluster that is not named, each for itself. Clusters that are
not named where there is no "*" come last. Knows no endpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

TRAFFIC_ANNOTATION = "mcagent.io/traffic"  # on a ServiceImport
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
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Traffic:
    """Clusters by rank. None at all: kube-proxy chooses."""

    ranks: tuple[tuple[Share, ...], ...] = ()

    def __str__(self) -> str:
        """Return the text that says this."""
        shown = (", ".join(f"{share.cluster}={share.weight}" for share in rank) for rank in self.ranks)
        return " > ".join(shown) or ANY

    def weights(self, clusters: Iterable[str], own: str) -> list[dict[str, int]]:
        """Return the weights of these clusters by rank, the first one first; `own` is this cluster's ID."""
        named = {own if share.cluster == LOCAL else share.cluster for rank in self.ranks for share in rank}
        rest = [one for one in clusters if one not in named]
        every = frozenset(clusters)
        ranks = [_weights(rank, every, rest, own) for rank in self.ranks]
        return ranks if OTHERS in named else [*ranks, dict.fromkeys(rest, 1)]


def _weights(rank: tuple[Share, ...], every: frozenset[str], rest: list[str], own: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for share in rank:
        if share.cluster == OTHERS:
            found |= dict.fromkeys(rest, share.weight)
        elif (cluster := own if share.cluster == LOCAL else share.cluster) in every:
            found[cluster] = share.weight
    return {cluster: weight for cluster, weight in found.items() if weight}


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
    return Traffic(ranks)


def _share(word: str) -> Share:
    cluster, equals, weight = (part.strip() for part in word.partition("="))
    if not _CLUSTER.fullmatch(cluster):
        raise ValueError(f'must be {_ALLOWED}; "{word[:80]}" is not a cluster')
    if not equals:
        return Share(cluster)
    if not weight.isdecimal() or len(weight) > 4 or int(weight) > MAX_WEIGHT:
        raise ValueError(f'must have weights from 0 to {MAX_WEIGHT}, "{word[:80]}" has not')
    return Share(cluster, int(weight))
