"""Flow tables: lookup of packets, and the search for contradicting flows.

Owns the index; must not know groups or connection tracking, or actions other than conjunctions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from flows.actions import Conjunction
from flows.fields import CONJ_ID, MatchField
from flows.flow import Flow

Signature = tuple[tuple[MatchField, int], ...]  # the fields and masks of a match
Space = Mapping[tuple[int, ...], list[Flow]]  # the flows of one signature by the values of the masked fields


class FlowTable:
    """The flows of one table, indexed by their masks (tuple space search, as in OVS' classifier)."""

    def __init__(self, flows: Iterable[Flow]) -> None:
        self._flows = tuple(flows)

    @cached_property
    def _spaces(self) -> list[tuple[int, Signature, Space]]:
        """The spaces by maximal priority, to end a search early. Built lazily: most tables get no packet."""
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
        """Return the matching flows of the highest priority: () is a miss, several are an error in the flows.

        A flow with other actions precedes clauses of conjunctive matches with the same priority. If all clauses of
        a conjunctive match are met, the packet is looked up again with conj_id; otherwise the clauses are ignored
        (classifier_lookup__ in OVS' lib/classifier.c).
        """
        candidates = self._best(state, 1 << 16)
        while candidates:
            plain = [flow for flow in candidates if not _clauses(flow)]
            if plain:
                return tuple(plain)
            # OVS does not define which of several complete conjunctive matches is used.
            ends = [self._best({**state, CONJ_ID: n}, 1 << 16, clauses=False) for n in _complete(candidates)]
            if any(ends):
                return tuple(dict.fromkeys(flow for again in ends for flow in again))
            candidates = self._best(state, candidates[0].priority)
        return ()

    def _best(self, state: Mapping[MatchField, int], below: int, *, clauses: bool = True) -> list[Flow]:
        """Return the matching flows of the highest priority below `below`.

        Without `clauses`, flows with clauses are skipped, and so are flows with the same match and a lower
        priority.
        """
        best: list[Flow] = []
        for highest, signature, space in self._spaces:
            if best and highest < best[0].priority:
                break
            flows = space.get(tuple([state.get(field, 0) & mask for field, mask in signature]))
            if flows and not clauses and _clauses(max(flows, key=lambda flow: flow.priority)):
                continue
            for flow in flows or ():
                if flow.priority >= below:
                    continue
                if not best or flow.priority > best[0].priority:
                    best = [flow]
                elif flow.priority == best[0].priority:
                    best.append(flow)
        return best


def _clauses(flow: Flow) -> bool:
    return bool(flow.actions) and isinstance(flow.actions[0], Conjunction)


def _complete(flows: list[Flow]) -> Iterator[int]:
    """Yield the IDs of the conjunctive matches all of whose clauses are met, by different flows."""
    clauses_met: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for flow in flows:
        for action in flow.actions:
            if isinstance(action, Conjunction):
                clauses_met[action.conj_id, action.of].add(action.clause)
    for (number, of), clauses in clauses_met.items():
        if len(clauses) == of <= len(flows):
            yield number
