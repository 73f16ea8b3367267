"""What all clusters ask for, as sorted integers: one changed cluster is settled by a look at its neighbours.

Decides nothing, and knows nothing of ranks: where ranges meet, `mcagent.core.addresses.ownership` decides.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.core.addresses.rules import PrefixRange
from mcagent.core.remote_clusters.cidr_claims import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTable:
    """The footprints of all clusters, each range with the cluster ID."""

    winners: Mapping[str, Candidate]  # by cluster ID, in order of seniority
    rows: list[tuple[PrefixRange, str]]  # sorted

    @classmethod
    def of(cls, winners: Mapping[str, Candidate]) -> ClaimTable:
        """Return the table of these winners."""
        rows = [(found, cluster_id) for cluster_id, one in winners.items() for found in one.footprint]
        rows.sort()
        return cls(winners=winners, rows=rows)

    def with_one(self, cluster_id: str, new: Candidate) -> ClaimTable | None:
        """Return the table with another candidate of a cluster that is in it.

        None if the new one shares an address with anybody. In this table nobody may share one with anybody.
        """
        old, rows = self.winners[cluster_id], self.rows
        if new.footprint != old.footprint:
            rows = list(rows)
            for found in old.footprint:
                del rows[bisect_left(rows, (found, cluster_id))]
            for found in new.footprint:
                place = bisect_left(rows, (found, ""))
                if _share(rows[place - 1 : place], found) or _share(rows[place : place + 1], found):
                    return None
                insort(rows, (found, cluster_id))
        return ClaimTable(winners={**self.winners, cluster_id: new}, rows=rows)

    def holds(self, address: int) -> bool:
        """Tell whether somebody asks for an IPv4 address. In this table nobody may share one with anybody."""
        place = bisect_right(self.rows, ((4, address, _END), "")) - 1
        return place >= 0 and self.rows[place][0][0] == 4 and self.rows[place][0][2] >= address


_END = 1 << 128  # after every address


def _share(row: list[tuple[PrefixRange, str]], wanted: PrefixRange) -> bool:
    """Tell whether there is a neighbour, and it has an address of the range."""
    version, first, last = wanted
    return bool(row) and row[0][0][0] == version and row[0][0][1] <= last and row[0][0][2] >= first
