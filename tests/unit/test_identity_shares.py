"""Clusters share the flows that label identities may have: the number of one cluster's takes none from another."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.policies.identities import UNCLAIMED
from mcagent.core.policies.peer_shares import Demand, exporters, unknown_peers
from mcagent.model.policies import Operator, Requirement, Selector
from tests.worlds.core_inputs import label_identity

SELECTORS = tuple(Selector(pod=(Requirement(key, Operator.EXISTS, ()),)) for key in "ab")
CLUSTERS = ("east", "west", "north")
pairs = st.frozensets(st.tuples(st.sampled_from((UNCLAIMED, *CLUSTERS)), st.integers(1, 12)), max_size=20)
exported = st.dictionaries(st.integers(1, 12), st.frozensets(st.sampled_from(CLUSTERS), min_size=1), min_size=12)


@given(
    st.tuples(pairs, pairs),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    exported,
    st.integers(0, 60),
)
def test_the_flows_of_identities_are_limited_and_fair(
    matched: tuple[frozenset[tuple[str, int]], frozenset[tuple[str, int]]],
    counts: tuple[int, int],
    exported_by: dict[int, frozenset[str]],
    limit: int,
) -> None:
    """Those that are not unknown are within the limit, and a cluster within its even share has none unknown."""
    identities = dict(zip(SELECTORS, matched, strict=True))
    flows: Counter[tuple[str, int]] = Counter()
    for pairs_of_selector, count in zip(matched, counts, strict=True):
        flows.update(dict.fromkeys(pairs_of_selector, count))
    of_pair = {pair: exported_by.get(pair[1], ()) if pair[0] == UNCLAIMED else (pair[0],) for pair in flows}
    unknown = unknown_peers(Demand(tuple(zip(SELECTORS, counts, strict=True)), limit), identities, exported_by)
    assert {pair: set(unknown[pair]) for pair in unknown} == {
        pair: set(clusters) for pair, clusters in of_pair.items() if pair in unknown
    }
    assert sum(flows.values()) - sum(flows[pair] for pair in flows.keys() & unknown.keys()) <= limit
    assert not unknown or sum(flows.values()) > limit
    for cluster in CLUSTERS:
        demand = sum(flows[pair] for pair in flows if cluster in of_pair[pair])
        if demand <= limit // len(CLUSTERS) - sum(counts):
            assert not any(cluster in clusters for clusters in unknown.values()), cluster


def test_an_identity_of_two_clusters_counts_once() -> None:
    """A cluster that exports what another one exports takes nothing from it."""
    shares = {number: frozenset({"east", "west"}) for number in range(1, 6)}
    identities = {SELECTORS[0]: frozenset((UNCLAIMED, number) for number in range(1, 11))}
    exported_by = {**shares, **{number: frozenset({"west"}) for number in range(6, 11)}}
    unknown = unknown_peers(Demand(((SELECTORS[0], 1),), 7), identities, exported_by)
    assert unknown == {(UNCLAIMED, number): frozenset({"west"}) for number in (8, 9, 10)}


def test_the_exporters_of_an_identity() -> None:
    """Those that it lists; any cluster may use one that has no list."""
    listed = {"a": label_identity("a", 7, "east", "west"), "b": label_identity("b", 8, believed=True)}
    assert exporters(listed) == {7: frozenset({"east", "west"}), 8: frozenset({UNCLAIMED})}
