"""Virtual Pod CIDRs on a Node: which addresses flows, kernel, probes and pages have."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network

import pytest

from mcagent.api.status import Status
from mcagent.cli.inspect.status import text
from mcagent.core.compile import Compiled, compile_desired
from mcagent.core.fragments.quoted import quoted_prefixes
from mcagent.core.local_cluster.prefixes import prefixes_by_objects
from mcagent.core.plan.render import node_summary
from mcagent.dataplane.conntrack import TrackedConnection, client_probes, may_be_translated
from mcagent.model.api.multicluster import ApiGateway
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.dataplane.resources import FlowEntry, NftChain, NftSet, Route
from mcagent.model.net import PodPrefix
from mcagent.model.node_state import AcceptedCluster
from mcagent.model.objects import ApiObject, Gateway, Kind
from mcagent.model.parsing.parse import parse_object
from mcagent.model.parsing.prefixes import PREFIXES_ANNOTATION
from tests.worlds.core_inputs import (
    HOME,
    cluster,
    config,
    endpoint,
    endpoint_slice,
    export,
    networks,
    resources,
    service,
    snapshot,
)

PREFIX = PodPrefix(real=ip_network("10.10.0.0/16"), virtual=ip_network("100.72.0.0/16"))
EAST = cluster("east", "10.97.0.0/16", "100.80.0.0/16")


def compiled(*objects: ApiObject, node: str = "g1", **settings: object) -> Compiled:
    """Return what a Node of cluster home has, whose controller has written virtual Pod CIDRs to the Gateways."""
    home = [replace(obj, prefixes=(PREFIX,)) if isinstance(obj, Gateway) else obj for obj in HOME]
    settings = {"enable_pod_to_pod": True, "pod_cidrs": networks("10.10.0.0/16"), **settings}
    return compile_desired(
        snapshot(*home, *objects), Facts(datapath=DatapathType.NETDEV), config(node, **settings)
    )


def flows(result: Compiled) -> list[FlowEntry]:
    """Return the flows."""
    return [entry for entry in resources(result) if isinstance(entry, FlowEntry)]


@pytest.mark.parametrize(
    "virtual", ["100.72.0.0/16", "10.96.0.0/16", "127.0.0.0/16"], ids=["usable", "Service CIDR", "loopback"]
)
def test_commands_find_the_prefixes_of_the_agents(virtual: str) -> None:
    """By the Gateways alone, without CIDRs that agents do not use."""
    prefix = PodPrefix(real=PREFIX.real, virtual=ip_network(virtual))
    home = [replace(obj, prefixes=(prefix,)) if isinstance(obj, Gateway) else obj for obj in HOME]
    result = compile_desired(snapshot(*home), Facts(datapath=DatapathType.NETDEV), config("g1"))
    prefixes = prefixes_by_objects(obj for obj in home if isinstance(obj, Gateway))
    assert prefixes == result.state.prefixes == ((prefix,) if virtual == "100.72.0.0/16" else ())


def test_between_the_two_tables_no_flow_has_a_real_address() -> None:
    """On gateways and workers, with Services; the tables at the kernel have both."""
    slices = endpoint_slice("web-1", "web", [endpoint("10.10.1.9"), endpoint("10.10.3.9")], ("", 8080))
    objects = (EAST, service("web", "10.96.0.7", 80), export("web"), slices)
    for node in ("g1", "w1"):
        result = compiled(*objects, node=node)
        texts = [f"{flow.match} {flow.actions}" for flow in flows(result) if flow.table not in (8, 82)]
        assert [line for line in texts if "10.10." in line] == []
        assert any("100.72.1.9" in line for line in texts) is (node == "g1")
        at_kernel = {flow.table for flow in flows(result) if "10.10.0.0/16" in f"{flow.match} {flow.actions}"}
        assert at_kernel == {8, 82}


def test_the_kernel_has_real_addresses_of_its_own_pods() -> None:
    """The set of sources that keep their address, and no route to the own virtual CIDR."""
    for node in ("g1", "w1"):
        result = compiled(EAST, node=node)
        sets = [r.elements for r in resources(result) if isinstance(r, NftSet) and r.name == "mct_pods"]
        assert sets == [networks("10.10.0.0/16")]
        routed = {r.destination for r in resources(result) if isinstance(r, Route)}
        assert PREFIX.virtual not in routed
        assert ip_network("100.80.0.0/16") in routed


def test_pods_keep_their_virtual_address_towards_other_clusters() -> None:
    """A cluster with the real Pod CIDR is refused, and one with another CIDR sees virtual addresses."""
    result = compiled(EAST, cluster("west", "10.98.0.0/16", "10.10.0.0/16"))
    assert not result.state.clusters["east"].snat
    assert result.state.clusters["west"].cidrs == networks("10.98.0.0/16")
    matches = [f.match for f in flows(result) if f.table == 50 and "nw_src" in f.match]
    assert matches == ["ip,reg0=0/0x20,nw_src=100.72.0.0/16"]


def test_no_prefix_outside_of_published_pods_changes_anything() -> None:
    """Without Pod-to-Pod nothing is published; the bridge translates all the same, and SNAT translates back."""
    result = compiled(EAST, enable_pod_to_pod=False)
    assert result.state.published_pods == ()
    assert [f.match for f in flows(result) if f.table == 50 and "nw_src" in f.match] == []


def test_invalid_prefixes_of_a_gateway_are_reported() -> None:
    """No Pod CIDR is translated, and the Gateway is used."""
    parsed = parse_object(_gateway("10.10.0.0/16=x"), Kind.GATEWAY)
    assert isinstance(parsed.value, Gateway)
    assert parsed.value.prefixes == ()
    assert [problem.reason for problem in parsed.problems] == ["InvalidValue"]
    gateway = parse_object(_gateway("10.10.0.0/16=100.72.0.0/16"), Kind.GATEWAY).value
    assert isinstance(gateway, Gateway)
    assert gateway.prefixes == (PREFIX,)
    assert ApiGateway().status.pod_prefixes is False


def _gateway(prefixes: str) -> dict[str, object]:
    metadata = {"name": "g1", "namespace": "mc", "annotations": {PREFIXES_ANNOTATION: prefixes}}
    return {"metadata": metadata, "gatewayIP": "192.0.2.1", "internalIP": "192.0.2.1"}


def test_a_prefix_that_is_no_unicast_is_not_used() -> None:
    """The agent checks what the controller has written."""
    wrong = PodPrefix(real=ip_network("10.10.0.0/16"), virtual=ip_network("224.0.0.0/16"))
    home = [replace(obj, prefixes=(wrong,)) if isinstance(obj, Gateway) else obj for obj in HOME]
    result = compile_desired(snapshot(*home), Facts(), config("g1"))
    assert result.state.prefixes == ()
    assert "NotUnicast" in {problem.reason for problem in result.desired.problems}


def test_probes_have_the_addresses_of_the_bridge() -> None:
    """The kernel's conntrack has real addresses of Pods; frames into the bridge have virtual ones."""
    slices = endpoint_slice("web-1", "web", [endpoint("10.10.1.9")], ("", 8080))
    objects = (EAST, service("web", "10.96.0.7", 80), export("web"), slices)
    state = compiled(*objects).state
    client, server, pod = (int(ip_address(a)) for a in ("100.80.3.4", "10.10.1.9", "100.72.1.9"))
    frames = list(client_probes([TrackedConnection(client, 4000, server, 8080)], state))
    assert frames
    assert all(pod.to_bytes(4) in frame and server.to_bytes(4) not in frame for frame in frames)
    translated = replace(state, clusters={n: replace(c, snat=True) for n, c in state.clusters.items()})
    (connection,) = may_be_translated([TrackedConnection(server, 5000, client, 80)], translated)
    assert IPv4Address(connection.client) == ip_address("100.72.1.9")
    assert may_be_translated([TrackedConnection(server, 5000, client, 80)], state) == []


def test_status_shows_both_cidrs() -> None:
    """For people and for programs."""
    summary = node_summary(compiled(EAST).state)
    assert summary.virtual_pod_cidrs == {"10.10.0.0/16": "100.72.0.0/16"}
    assert "pods      10.10.0.0/16 are 100.72.0.0/16 in other clusters" in text(Status(summary=summary))


def test_rules_for_quotes_keep_the_checksum() -> None:
    """What is written into the unused field makes up for the change of the prefix, in one's complement."""
    east = AcceptedCluster(cluster_id="east", cidrs=networks("100.80.0.0/16"), gateways=(), snat=False)
    into, out = quoted_prefixes((PREFIX,), {"east": east})
    real, virtual, remote = 0x0A0A, 0x6448, 0x6450
    assert out[1:] == (
        f"@th,32,16 0x0 @th,192,16 0xa0a @th,192,16 set 0x6448 @th,32,16 set 0x{_less(real, virtual):x}",
    )
    assert into[1] == (
        "@th,8,8 != 0x4 @th,48,16 0x0 @th,160,16 0x6448 @th,160,16 set 0xa0a "
        f"@th,48,16 set 0x{_less(virtual, real):x}"
    )
    both = (_less(real, remote) + _less(virtual, real)) % 0xFFFF
    assert any(
        rule.startswith(f"@th,8,8 0x4 @th,32,16 0x{_less(real, remote):x} ") and rule.endswith(f"0x{both:x}")
        for rule in into
    )
    result = compiled(EAST)
    expected = zip(
        ("mct_quoted_in", "mct_quoted_out"), quoted_prefixes((PREFIX,), result.state.clusters), strict=True
    )
    chains = {r.name: r.rules for r in resources(result) if isinstance(r, NftChain)}
    assert all(chains[name][-len(rules) :] == rules for name, rules in expected)


def test_rules_for_quotes_of_a_part_of_two_bytes() -> None:
    """The bits beyond the prefix stay: only addresses of the prefix are replaced, in both directions."""
    prefix = PodPrefix(real=ip_network("10.10.16.0/20"), virtual=ip_network("100.72.32.0/20"))
    into, out = quoted_prefixes((prefix,), {})
    bridge, kernel = "@th,160,32", "@th,192,32"
    assert into[1].split(" 0x0 ")[1].split(" @th,48")[0] == (
        f"{bridge} & 0xfffff000 == 0x64482000 {bridge} set {bridge} & 0xa0a1fff | 0xa0a1000"
    )
    assert out[1].split(" 0x0 ")[1].split(" @th,32,16")[0] == (
        f"{kernel} & 0xfffff000 == 0xa0a1000 {kernel} set {kernel} & 0x64482fff | 0x64482000"
    )
    assert len(into) == 3


def _less(number: int, other: int) -> int:
    return (number - other) % 0xFFFF
