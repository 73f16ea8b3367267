"""Flow tables to look packets up in, and the search for flows that contradict each other.

Owns the index; must not know actions, groups or connection tracking.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import combinations

from flows.actions import Conjunction
from flows.fields import CONJ_ID, MatchField
from flows.flow import Flow

Signature = tuple[tuple[MatchField, int], ...]  # which bits of which fields a match looks at
Space = Mapping[tuple[int, ...], list[Flow]]  # flows by the values of these bits


class FlowTable:
    """The flows of one table, kept by the set of bits they look at (tuple space search, as OVS' classifier)."""

    def __init__(self, flows: Iterable[Flow]) -> None:
        self._flows = tuple(flows)

    @cached_property
    def _spaces(self) -> list[tuple[int, Signature, Space]]:
        """The spaces, by priority, so that a search can end early. Made late: most tables meet no packet."""
        spaces: defaultdict[Signature, defaultdict[tuple[int, ...], list[Flow]]]
        spaces = defaultdict(lambda: defaultdict(list))
        for flow in self._flows:
            terms = flow.match.terms
            spaces[tuple((t.field, t.mask) for t in terms)][tuple(t.value for t in terms)].append(flow)
        return sorted(
            (
                (max(f.priority for same in space.values() for f in same), sig, space)
                for sig, space in spaces.items()
            ),
            key=lambda entry: -entry[0],
        )

    def lookup(self, state: Mapping[MatchField, int]) -> tuple[Flow, ...]:
        """Return the flows of the highest priority that match: none is a miss, more than one is a fault.

        Clauses of conjunctive matches give way to any other flow of their priority. Where they are complete, the
        packet is looked up again with conj_id, else they count as if they were not there (classifier_lookup__ in
        OVS' lib/classifier.c).
        """
        found = self._best(state, 1 << 16)
        while found:
            plain = [flow for flow in found if not _clauses(flow)]
            if plain:
                return tuple(plain)
            # Which of several is taken is not told.
            ends = [self._best({**state, CONJ_ID: n}, 1 << 16, clauses=False) for n in _complete(found)]
            if any(ends):
                return tuple(dict.fromkeys(flow for again in ends for flow in again))
            found = self._best(state, found[0].priority)
        return ()

    def _best(self, state: Mapping[MatchField, int], below: int, *, clauses: bool = True) -> list[Flow]:
        """Return the flows of the highest priority under `below` that match.

        Without `clauses` these are passed over, together with what they hide: the same match of lower priority.
        """
        best: list[Flow] = []
        for highest, signature, space in self._spaces:
            if best and highest < best[0].priority:
                break
            found = space.get(tuple([state.get(field, 0) & mask for field, mask in signature]))
            if found and not clauses and _clauses(max(found, key=lambda flow: flow.priority)):
                continue
            for flow in found or ():
                if flow.priority >= below:
                    continue
                if not best or flow.priority > best[0].priority:
                    best = [flow]
                elif flow.priority == best[0].priority:
                    best.append(flow)
        return best


def _clauses(flow: Flow) -> bool:
    return bool(flow.actions) and isinstance(flow.actions[0], Conjunction)


def _complete(found: list[Flow]) -> Iterator[int]:
    """Yield the conjunctive matches of which every clause is among these flows, each of which counts for one."""
    met: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for flow in found:
        for action in flow.actions:
            if isinstance(action, Conjunction):
                met[action.conj_id, action.of].add(action.clause)
    for (number, of), those in met.items():
        if len(those) == of <= len(found):
            yield number


def overlap(a: Flow, b: Flow) -> bool:
    """Tell whether some packet would match both flows, leaving priorities out of it."""
    theirs = {term.field: term for term in b.match.terms}
    for term in a.match.terms:
        other = theirs.get(term.field)
        if other is not None and (term.value ^ other.value) & term.mask & other.mask:
            return False
    return True


def contradictions(flows: Iterable[Flow]) -> Iterator[tuple[Flow, Flow]]:
    """Yield pairs in one table, of equal priority, that overlap and act differently (or are the same match).

    Clauses of conjunctive matches overlap with whatever they like.
    """
    ranked: defaultdict[tuple[int, int], list[Flow]] = defaultdict(list)
    for flow in flows:
        ranked[flow.table, flow.priority].append(flow)
    for rank in ranked.values():
        for a, b in combinations(rank, 2):
            differ = a.actions != b.actions and not (_clauses(a) or _clauses(b))
            if a.match == b.match or (differ and overlap(a, b)):
                yield a, b
