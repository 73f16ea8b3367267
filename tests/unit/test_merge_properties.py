"""The merge of exports over random exports, orders and times."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.contract.names import ExportKind
from mcagent.controller.contract.services import PayloadPort, ServiceSpec
from mcagent.controller.leader.exports.header import Header
from mcagent.controller.leader.exports.payloads import Backends
from mcagent.controller.leader.services.merge import Merged, Offer, difference, merge
from mcagent.model.objects import IpProtocol

CLUSTERS = ("c0", "c1", "c2", "c3", "c4")
PROTOCOLS = st.sampled_from([IpProtocol.TCP, IpProtocol.UDP])
PORTS = st.lists(
    st.builds(
        PayloadPort,
        name=st.sampled_from(["http", "admin", "dns", "x", ""]),
        port=st.sampled_from([80, 81, 82]),
        protocol=PROTOCOLS,
        app_protocol=st.sampled_from(["", "http"]),
    ),
    min_size=1,
    max_size=4,
    unique_by=(lambda p: p.name, lambda p: (p.port, p.protocol)),
).filter(lambda ports: len(ports) == 1 or all(p.name for p in ports))
SPECS = st.builds(
    ServiceSpec,
    ports=PORTS.map(tuple),
    affinity_seconds=st.sampled_from([None, 60, 90]),
    headless=st.booleans(),
    traffic_policy=st.sampled_from(["", "Cluster", "Local"]),
    distribution=st.sampled_from(["", "PreferClose"]),
    families=st.sampled_from([(), ("IPv4",), ("IPv4", "IPv6")]),
    labels=st.sampled_from([(), (("a", "1"),)]),
)


@st.composite
def offers(draw: st.DrawFn) -> list[Offer]:
    """Return the offers of some clusters: each serves all its ports by addresses of its own and a common one."""
    offers = []
    for number, cluster in enumerate(draw(st.lists(st.sampled_from(CLUSTERS), unique=True, min_size=1))):
        spec = draw(SPECS)
        addresses = [f"10.{number}.0.1", *draw(st.sampled_from([[], ["10.99.0.1"]]))]
        ports = tuple(sorted((p.name, str(p.protocol), p.port) for p in spec.ports))
        header = Header(
            area="mcs",
            export=f"{cluster}-shop-web-service",
            kind=ExportKind.SERVICE,
            cluster_id=cluster,
            namespace="shop",
            name="web",
            created=f"2026-01-01T00:00:0{draw(st.integers(0, 2))}Z",
            deleting=False,
        )
        backends = Backends(subsets={ports: frozenset(map(ip_address, addresses))})
        definition: ServiceSpec | str = spec if draw(st.integers(0, 3)) else "no"
        offers.append(Offer(header=header, definition=definition, backends=backends))
    return offers


def served(merged: Merged) -> set[tuple[str, str]]:
    """Return which cluster serves which port by its name."""
    return {(cluster, name) for cluster, ports in merged.subsets or {} for name, _, _ in ports}


def specs(offers: Sequence[Offer]) -> list[tuple[str, ServiceSpec]]:
    """Return what those say that take part, the oldest first."""
    ordered = sorted(offers, key=lambda offer: offer.header.order)
    return [(o.header.cluster_id, o.definition) for o in ordered if isinstance(o.definition, ServiceSpec)]


@pytest.mark.costly
@given(st.data(), offers(), st.booleans())
def test_any_order_has_the_same_result(data: st.DataObject, some: list[Offer], refuse: bool) -> None:
    """In whatever order a leader sees the exports, it says the same."""
    other = data.draw(st.permutations(some))
    assert merge(some, refuse_conflicts=refuse) == merge(other, refuse_conflicts=refuse)


@pytest.mark.costly
@given(offers())
def test_nobody_starves(some: list[Offer]) -> None:
    """A cluster serves every port that is like the oldest of its name, and the oldest export all of its own."""
    merged, export_specs = merge(some), specs(some)
    if not export_specs:
        assert merged.definition is None
        return
    assert merged.definition is not None
    imported = {p.name: (p.port, p.protocol) for p in merged.definition.ports}
    for cluster, spec in export_specs:
        assert merged.services[cluster].merged
        for port in spec.ports:
            same = imported.get(port.name) == (port.port, port.protocol)
            assert ((cluster, port.name) in served(merged)) == same
    oldest, spec = export_specs[0]
    assert {(oldest, p.name) for p in spec.ports} <= served(merged)


@pytest.mark.costly
@given(offers())
def test_what_is_imported_is_a_service(some: list[Offer]) -> None:
    """No two ports have one name, or one number and protocol; of several each has a name."""
    merged = merge(some)
    if merged.definition is None:
        return
    ports = merged.definition.ports
    assert len({p.name for p in ports}) == len({(p.port, p.protocol) for p in ports}) == len(ports)
    assert len(ports) == 1 or all(p.name for p in ports)
    assert {name for _, name in served(merged)} <= {p.name for p in ports}


@pytest.mark.costly
@given(offers())
def test_an_address_is_there_once_for_its_ports(some: list[Offer]) -> None:
    """Of two clusters that name one address for the same ports the older has it."""
    merged = merge(some)
    pairs = [(ports, a) for (_, ports), subset in (merged.subsets or {}).items() for a in subset]
    assert len(set(pairs)) == len(pairs)


@pytest.mark.costly
@given(st.data(), offers(), st.booleans())
def test_removing_one_gives_what_the_others_alone_give(
    data: st.DataObject,
    some: list[Offer],
    refuse: bool,
) -> None:
    """An export that goes leaves nothing behind, and one that was refused never changed anything for others."""
    gone = data.draw(st.sampled_from(some))
    remaining = [offer for offer in some if offer is not gone]
    before, alone = merge(some, refuse_conflicts=refuse), merge(remaining, refuse_conflicts=refuse)
    if not before.services[gone.header.cluster_id].merged:
        assert (before.definition, before.subsets) == (alone.definition, alone.subsets)
    if not remaining:
        assert (alone.definition, alone.subsets) == (None, None)


@pytest.mark.costly
@given(offers())
def test_conflicts_are_told_to_all_or_nobody(some: list[Offer]) -> None:
    """Whoever takes part reads of a conflict exactly if not all say the same."""
    merged, export_specs = merge(some), specs(some)
    conflicts = {merged.services[cluster].conflict for cluster, _ in export_specs}
    assert len(conflicts) <= 1
    different = any(difference(spec, other) for _, spec in export_specs for _, other in export_specs)
    if different:
        (conflict,) = conflicts
        assert conflict is not None
        assert conflict.reason in ("TypeConflict", "PortConflict")
    if len(export_specs) == 1:
        assert conflicts == {None}
