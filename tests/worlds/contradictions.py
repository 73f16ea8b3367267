"""Flows that contradict each other: of equal priority, with different actions for one packet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations

from flows.actions import Conjunction
from flows.flow import Flow


def overlap(a: Flow, b: Flow) -> bool:
    """Tell whether a packet can match both flows, regardless of priorities."""
    other_terms = {term.field: term for term in b.match.terms}
    for term in a.match.terms:
        other = other_terms.get(term.field)
        if other is not None and (term.value ^ other.value) & term.mask & other.mask:
            return False
    return True


def contradictions(flows: Iterable[Flow]) -> Iterator[tuple[Flow, Flow]]:
    """Yield pairs of flows of equal priority that overlap with different actions, or have the same match.

    Clauses of conjunctive matches may overlap with any flow.
    """
    by_table_and_priority: defaultdict[tuple[int, int], list[Flow]] = defaultdict(list)
    for flow in flows:
        by_table_and_priority[flow.table, flow.priority].append(flow)
    for same_priority in by_table_and_priority.values():
        for a, b in combinations(same_priority, 2):
            differ = a.actions != b.actions and not (_is_clause(a) or _is_clause(b))
            if a.match == b.match or (differ and overlap(a, b)):
                yield a, b


def _is_clause(flow: Flow) -> bool:
    return bool(flow.actions) and isinstance(flow.actions[0], Conjunction)
