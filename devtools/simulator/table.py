"""Flow tables to look packets up in, and the search for flows that contradict each other.

Owns the index; must not know actions, groups or connection tracking.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from flows.fields import Field
from flows.flow import Flow

Signature = tuple[tuple[Field, int], ...]  # which bits of which fields a match looks at


class Table:
    """The flows of one table, kept by the set of bits they look at (tuple space search, as OVS' classifier)."""

    def __init__(self, flows: Iterable[Flow]) -> None:
        spaces: defaultdict[Signature, defaultdict[tuple[int, ...], list[Flow]]]
        spaces = defaultdict(lambda: defaultdict(list))
        for flow in flows:
            terms = flow.match.terms
            spaces[tuple((t.field, t.mask) for t in terms)][tuple(t.value for t in terms)].append(flow)
        # Spaces with the highest priority first: the search can end early.
        self._spaces = sorted(
            (
                (max(f.priority for same in space.values() for f in same), sig, space)
                for sig, space in spaces.items()
            ),
            key=lambda entry: -entry[0],
        )

    def lookup(self, state: Mapping[Field, int]) -> tuple[Flow, ...]:
        """Return the flows of the highest priority that match: none is a miss, more than one is a fault."""
        best: list[Flow] = []
        for highest, signature, space in self._spaces:
            if best and highest < best[0].priority:
                break
            found = space.get(tuple([state.get(field, 0) & mask for field, mask in signature]))
            for flow in found or ():
                if not best or flow.priority > best[0].priority:
                    best = [flow]
                elif flow.priority == best[0].priority:
                    best.append(flow)
        return tuple(best)


def overlap(a: Flow, b: Flow) -> bool:
    """Tell whether some packet would match both flows, leaving priorities out of it."""
    theirs = {term.field: term for term in b.match.terms}
    for term in a.match.terms:
        other = theirs.get(term.field)
        if other is not None and (term.value ^ other.value) & term.mask & other.mask:
            return False
    return True


def contradictions(flows: Iterable[Flow]) -> Iterator[tuple[Flow, Flow]]:
    """Yield pairs in one table, of equal priority, that overlap and act differently (or are the same match)."""
    ranked: defaultdict[tuple[int, int], list[Flow]] = defaultdict(list)
    for flow in flows:
        ranked[flow.table, flow.priority].append(flow)
    for rank in ranked.values():
        for a, b in combinations(rank, 2):
            if overlap(a, b) and (a.actions != b.actions or a.match == b.match):
                yield a, b
