"""What all clusters ask for, as sorted integers: ranges of addresses, and the addresses of their gateways.

Owns the order that lets one sweep find who is in whose way, and the look-up that finds it for one changed cluster
without a sweep. Decides nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.core.candidate import Candidate
from mcagent.core.claims import PrefixRange

Point = tuple[int, int]  # IP version, address
_END = 1 << 128  # after every address
_LAST = "\U0010ffff"  # after every cluster ID


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTable:
    """Rows of all clusters, each with the cluster ID."""

    winners: Mapping[str, Candidate]  # by cluster ID, in order of seniority
    ranges: list[tuple[PrefixRange, str]]
    points: list[tuple[Point, str]]

    @classmethod
    def of(cls, winners: Mapping[str, Candidate], before: ClaimTable | None) -> ClaimTable:
        """Return the table of these winners; rows of those that did not change are taken over in their order."""
        old: Mapping[str, Candidate] = before.winners if before is not None else {}
        changed = {i for i, c in winners.items() if old.get(i) is not c}
        stale = changed | (old.keys() - winners.keys())
        ranges = [row for row in before.ranges if row[1] not in stale] if before is not None else []
        points = [row for row in before.points if row[1] not in stale] if before is not None else []
        for cluster_id in changed:
            ranges.extend((claim.range, cluster_id) for claim in winners[cluster_id].claims)
            points.extend((point, cluster_id) for point in winners[cluster_id].points)
        ranges.sort()
        points.sort()
        return cls(winners=winners, ranges=ranges, points=points)

    def with_one(self, cluster_id: str, new: Candidate) -> ClaimTable | None:
        """Return the table with another candidate of a cluster that is in it.

        None if the new one shares an address with anybody. In this table nobody may share one with anybody.
        """
        old = self.winners[cluster_id]
        ranges, points = self.ranges, self.points
        if new.claims != old.claims:
            ranges = list(ranges)
            for claim in old.claims:
                del ranges[bisect_left(ranges, (claim.range, cluster_id))]
            for claim in new.claims:
                insort(ranges, (claim.range, cluster_id))
        if new.points != old.points:
            points = list(points)
            for point in old.points:
                del points[bisect_left(points, (point, cluster_id))]
            for point in new.points:
                insort(points, (point, cluster_id))
        found = ClaimTable(winners={**self.winners, cluster_id: new}, ranges=ranges, points=points)
        alone = not any(map(found._touched, (claim.range for claim in new.claims))) and not any(
            map(found._shared, new.points)
        )
        return found if alone else None

    def _touched(self, wanted: PrefixRange) -> bool:
        """Tell whether another range overlaps this one, or a gateway lies in it."""
        version, first, last = wanted
        place = bisect_left(self.ranges, (wanted, ""))
        if place and self.ranges[place - 1][0][0] == version and self.ranges[place - 1][0][2] >= first:
            return True
        if place + 1 < len(self.ranges) and self.ranges[place + 1][0][:2] <= (version, last):
            return True
        point = bisect_left(self.points, ((version, first), ""))
        return point < len(self.points) and self.points[point][0] <= (version, last)

    def _shared(self, point: Point) -> bool:
        """Tell whether another gateway has this address, or it lies in a range."""
        first = bisect_left(self.points, (point, ""))
        if bisect_right(self.points, (point, _LAST)) - first > 1:
            return True
        place = bisect_right(self.ranges, ((*point, _END), "")) - 1
        return place >= 0 and self.ranges[place][0][0] == point[0] and self.ranges[place][0][2] >= point[1]
