"""Which CIDRs of different clusters overlap. Pure; integers, so that 250 clusters are cheap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from mcagent.core.claims import prefix_range
from mcagent.kube.source import RawObject
from mcagent.model.net import parse_network


class Range(NamedTuple):
    """A CIDR as a range of integers. `what` names it: "Service CIDR 10.96.0.0/16"."""

    version: int
    first: int
    last: int
    what: str
    pod: bool

    def __str__(self) -> str:
        return self.what


@lru_cache(maxsize=16384)
def _range(text: str, pod: bool) -> Range | None:
    try:
        network, _ = parse_network(text)
    except ValueError:
        return None
    return Range(*prefix_range(network), f"{'Pod' if pod else 'Service'} CIDR {network}", pod)


def ranges(raw: RawObject | None) -> tuple[Range, ...]:
    """Return the CIDRs of a ClusterInfo export that can be read; none for anything else."""
    spec = raw.get("spec") if raw else None
    info = spec.get("clusterInfo") if isinstance(spec, dict) else None
    if not isinstance(info, dict):
        return ()
    pods = info.get("podCIDRs")
    texts = [(info.get("serviceCIDR"), False), *((p, True) for p in (pods if isinstance(pods, list) else ()))]
    found = (_range(text, pod) for text, pod in texts if isinstance(text, str))
    return tuple(item for item in found if item is not None)


def overlapping(own: Iterable[Range], others: Sequence[Range]) -> list[tuple[Range, Range]]:
    """Return the pairs that share an address."""
    return [(a, b) for a in own for b in others if a[0] == b[0] and a[1] <= b[2] and b[1] <= a[2]]


def pairs(owned: Iterable[tuple[str, Range]]) -> list[tuple[str, Range, str, Range]]:
    """Return the overlaps between different owners, sorted: one sweep over the CIDRs by first address."""
    found = []
    open_rows: list[tuple[str, Range]] = []
    for owner, row in sorted(owned, key=lambda item: (item[1][:3], item[0])):
        open_rows = [(o, r) for o, r in open_rows if r.version == row.version and r.last >= row.first]
        found += [(o, r, owner, row) for o, r in open_rows if o != owner]
        open_rows.append((owner, row))
    return sorted(found)
