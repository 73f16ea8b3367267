"""Addresses of others: what a member cluster writes into its ClusterInfo to get packets that are not its own.

Seen from a gateway of cluster "home", whose agent decides for itself whatever a leader lets through.
"""

from __future__ import annotations

import base64
import time
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network

import pytest

from mcagent.core.addresses.underlay import source_of
from mcagent.core.compile import Compiled, Compiler, compile_desired
from mcagent.model.config import PodRouting, TrafficEncryption
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import Route
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.errors import InputError
from mcagent.model.objects import ClusterInfoImport, Kind, WireGuardInfo
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, granted_text
from mcagent.model.parsing.parse import parse_object
from tests.attacks.catalogue import Attacker, Group, attack
from tests.attacks.claims import NEW, NO_FACTS, OLD, RAW, WEST, decide, has, problems, unharmed
from tests.worlds.core_inputs import (
    HOME,
    addresses,
    cluster,
    config,
    endpoint,
    endpoint_slice,
    gateway,
    meta,
    networks,
    node,
    pod,
    snapshot,
)

by_member = partial(attack, Group.ADDRESSES, Attacker.MEMBER)

FIRST, SECOND, LATER = (f"2026-0{month}-01T00:00:00.000000Z" for month in (1, 2, 3))


def routes(found: Compiled) -> set[str]:
    """Return what the Node's kernel sends into the bridge, or keeps out of it."""
    resources = (resource for fragment in found.desired.fragments.values() for resource in fragment.resources)
    return {str(resource.destination) for resource in resources if isinstance(resource, Route)}


@by_member(
    wants="receive another member's Pod's packets by naming the Pod's address as a gateway of its own",
    stopped_by="the rule of ownership: an address inside a CIDR that was claimed before is no gateway of others",
)
def test_a_pod_address_of_another_member_as_gateway() -> None:
    """The gateway is refused, no throw route takes the address out of the tunnels, the rest of north works."""
    north = cluster("north", "10.103.0.0/16", gateways=("192.168.3.11", "10.20.1.2"), created=NEW)
    decision = unharmed(WEST, north)
    assert has(decision, "north") == (("10.103.0.0/16",), ("192.168.3.11",))
    assert "10.20.1.2/32" not in routes(decision)
    assert ("spec.gatewayInfos[1].gatewayIP", "DuplicateAddress") in problems(decision, "north")


@by_member(
    wants="receive the tunnel packets meant for another member by claiming a CIDR around its gateway",
    stopped_by="the rule of ownership: a CIDR that holds the gateway of an older claim is refused",
)
@pytest.mark.parametrize("cidr", ["192.168.0.0/16", "192.168.2.0/24", "192.168.2.11/32"])
def test_a_cidr_around_the_gateway_of_another_member(cidr: str) -> None:
    """No route leads there, whatever the prefix length, and the other's tunnel stays."""
    decision = unharmed(WEST, cluster("north", cidr, gateways=("172.18.0.3",), created=NEW))
    assert has(decision, "north") == ((), ("172.18.0.3",))
    assert cidr not in routes(decision)
    assert problems(decision, "north") == {("spec.serviceCIDR", "OverlapsRemote")}


@by_member(
    wants="take a younger member's CIDR by editing the ClusterInfo that it has had for longer",
    stopped_by="seniority of the claim, not of the object: what is added later is younger",
)
@pytest.mark.parametrize("cidr", ["10.102.0.0/16", "10.102.7.0/24", "10.96.0.0/11"])
def test_an_older_member_takes_a_younger_ones_cidr(cidr: str) -> None:
    """The younger member keeps what the leader granted it first, and the older one what it had."""
    granted = {"10.102.0.0/16": SECOND, "10.20.0.0/16": SECOND, "192.168.2.11": SECOND}
    west = replace(WEST, meta=replace(WEST.meta, created=NEW), granted=granted)
    mine = {"10.103.0.0/16": FIRST, "192.168.3.11": FIRST, cidr: LATER}
    north = cluster("north", "10.103.0.0/16", cidr, gateways=("192.168.3.11",), created=OLD, granted=mine)
    # beside home's Service CIDR, which is in the widest of them
    home = (node("g1", "192.0.2.1"), node("w1", "192.0.2.3"), gateway("g1", "192.0.2.1", cidr="10.4.0.0/16"))
    decision = unharmed(west, north, home=home)
    assert has(decision, "north") == (("10.103.0.0/16",), ("192.168.3.11",))
    assert ("spec.podCIDRs[0]", "OverlapsRemote") in problems(decision, "north")


@by_member(
    wants="take a younger member's gateway address by editing the ClusterInfo that it has had for longer",
    stopped_by="seniority of the claim: a gateway address that was granted to another cluster before is refused",
)
def test_an_older_member_takes_a_younger_ones_gateway() -> None:
    """The younger member's gateway stays its own; the older one keeps what it had."""
    granted = {"10.102.0.0/16": SECOND, "10.20.0.0/16": SECOND, "192.168.2.11": SECOND}
    west = replace(WEST, meta=replace(WEST.meta, created=NEW), granted=granted)
    mine = {"10.103.0.0/16": FIRST, "192.168.3.11": FIRST, "192.168.2.11": LATER}
    gateways = ("192.168.2.11", "192.168.3.11")
    north = cluster("north", "10.103.0.0/16", gateways=gateways, created=OLD, granted=mine)
    assert has(unharmed(west, north), "north") == (("10.103.0.0/16",), ("192.168.3.11",))


def key(number: int) -> str:
    """Return a WireGuard public key."""
    return base64.b64encode(number.to_bytes(32, "big")).decode()


@by_member(
    wants="have a younger member's WireGuard key refused by publishing it as its own",
    stopped_by="seniority of the claim: a key belongs to the cluster to which it was granted first",
)
@pytest.mark.parametrize("next_key", [False, True])
def test_an_older_member_publishes_a_younger_ones_key(next_key: bool) -> None:
    """The younger member's gateway keeps its encrypted tunnel; the older one's that has the key loses its own."""
    facts = Facts(wireguard=WireGuardImplementation.KERNEL, wireguard_public_key=key(1))
    west = replace(
        WEST,
        meta=replace(WEST.meta, created=NEW),
        gateway_wireguard=((ip_address("192.168.2.11"), WireGuardInfo(public_key=key(2))),),
        granted={"10.102.0.0/16": SECOND, "192.168.2.11": SECOND, key(2): SECOND},
    )
    north = cluster("north", "10.103.0.0/16", gateways=("192.168.3.11",), created=OLD)
    stolen = (
        WireGuardInfo(public_key=key(3), next_public_key=key(2)) if next_key else WireGuardInfo(public_key=key(2))
    )
    north = replace(
        north,
        gateway_wireguard=((ip_address("192.168.3.11"), stolen),),
        granted={"10.103.0.0/16": FIRST, "192.168.3.11": FIRST, key(3): FIRST, key(2): LATER},
    )
    mode = TrafficEncryption.WIREGUARD
    alone, decision = decide(west, facts=facts, encryption=mode), decide(west, north, facts=facts, encryption=mode)
    assert decision.state.encryption.ends["west"] == alone.state.encryption.ends["west"] != ()
    assert decision.state.encryption.ends["north"] == ()
    assert ("spec.gatewayInfos[0].wireGuard", "DuplicateKey") in problems(decision, "north")


@by_member(
    wants="receive what Nodes send to the API server of their cluster by claiming a range with its address",
    stopped_by="protection of what a Node cannot do without, also inside allowedRemoteCIDRs",
)
@pytest.mark.parametrize("cidr", ["10.77.0.0/16", "10.77.0.5/32", "10.76.0.0/15"])
def test_a_range_with_the_api_server(cidr: str) -> None:
    """Neither the address where connections went nor one behind the Service `kubernetes` is anybody else's."""
    attacker = cluster("north", cidr, gateways=("192.168.3.11",))
    slices = endpoint_slice("kubernetes", "kubernetes", [endpoint("10.77.0.5")], ("https", 6443))
    facts = Facts(api_servers=addresses("10.77.0.5"))
    for decision in (
        decide(attacker, facts=facts),
        decide(attacker, facts=facts, on="w1"),
        decide(attacker, facts=facts, allowed_remote_cidrs=networks("10.0.0.0/8")),
        decide(attacker, slices),
    ):
        assert has(decision, "north") == ((), ("192.168.3.11",))
        assert cidr not in routes(decision)
        assert problems(decision, "north") == {("spec.serviceCIDR", "Protected")}


@by_member(
    wants="answer the Nodes' DNS queries by claiming a range with their resolver",
    stopped_by="protection of what a Node cannot do without, also inside allowedRemoteCIDRs",
)
@pytest.mark.parametrize("cidr", ["10.53.0.0/24", "9.9.9.0/24"])
def test_a_range_with_the_resolver(cidr: str) -> None:
    """A private resolver is nobody else's, and a public one not even where its range is listed."""
    facts = Facts(resolvers=addresses("10.53.0.10", "9.9.9.9"))
    attacker = cluster("north", cidr, gateways=("192.168.3.11",))
    for on in ("g1", "w1"):
        decision = decide(attacker, facts=facts, on=on, allowed_remote_cidrs=networks("0.0.0.0/0"))
        assert cidr not in routes(decision)
        assert problems(decision, "north") == {("spec.serviceCIDR", "Protected")}


@by_member(
    wants="cut Nodes off from the Internet by claiming a range with their default gateway",
    stopped_by="protection of what a Node cannot do without, of any of its default routes",
)
def test_a_range_with_a_default_gateway() -> None:
    """Also one that is on no connected network (a /32 uplink, as clouds have them) is nobody else's."""
    facts = Facts(default_gateways=addresses("10.55.0.1"))
    decision = decide(cluster("north", "10.55.0.0/16", gateways=("10.55.0.1", "192.168.3.11")), facts=facts)
    assert has(decision, "north") == ((), ("192.168.3.11",))
    assert problems(decision, "north") == {
        ("spec.serviceCIDR", "Protected"),
        ("spec.gatewayInfos[0].gatewayIP", "Protected"),
    }


@by_member(
    wants="cut Nodes off from each other by claiming a range with a Node on another network",
    stopped_by="the Nodes of the cluster, which no range of others may hold, also inside allowedRemoteCIDRs",
)
def test_a_range_with_a_node_of_this_cluster() -> None:
    """A Node elsewhere, a Gateway's address that no Node has, and a Node's ExternalIP are nobody else's."""
    far = node("far", "10.60.0.9"), node("g9", "192.0.2.9"), gateway("g9", "10.61.0.1", "192.0.2.9")
    outside = replace(node("out", "192.0.2.8"), external_ips=addresses("10.62.0.8"))
    cidrs = ("10.60.0.0/24", "10.61.0.0/16", "10.62.0.8/32")
    attacker = cluster("north", *cidrs, gateways=("10.60.0.9", "10.62.0.8", "192.168.3.11"))
    for allowed in ((), networks("10.0.0.0/8")):
        decision = decide(*far, outside, attacker, allowed_remote_cidrs=allowed)
        assert has(decision, "north") == ((), ("192.168.3.11",))
        assert {reason for _, reason in problems(decision, "north")} == {"OverlapsLocal", "DuplicateAddress"}


@by_member(
    wants="receive what Nodes send to the leader, or to an API server behind a name",
    stopped_by="`protectedCIDRs`, which go before everything that is allowed",
)
def test_a_range_that_the_administrator_protects() -> None:
    """Neither as a CIDR, be it wider or narrower, nor as a gateway."""
    protected = networks("10.70.0.0/24")
    for cidr in ("10.70.0.0/16", "10.70.0.8/29"):
        attacker = cluster("north", cidr, gateways=("10.70.0.9", "192.168.3.11"))
        decision = decide(attacker, protected_cidrs=protected, allowed_remote_cidrs=networks("10.70.0.0/16"))
        assert has(decision, "north") == ((), ("192.168.3.11",))
        assert {reason for _, reason in problems(decision, "north")} == {"Protected"}


@by_member(
    wants="have Nodes treat their API server or resolver as a tunnel endpoint by naming it as a gateway",
    stopped_by="protection of what a Node cannot do without: it is no gateway of others either",
)
@pytest.mark.parametrize("address", ["10.77.0.5", "9.9.9.9", "2001:db8::53"])
def test_a_lifeline_as_gateway(address: str) -> None:
    """No tunnel, no throw route, no rule leads there, whether IPv4 or IPv6."""
    facts = Facts(api_servers=addresses("10.77.0.5"), resolvers=addresses("9.9.9.9", "2001:db8::53"))
    decision = decide(cluster("north", "10.103.0.0/16", gateways=(address, "192.168.3.11")), facts=facts)
    assert has(decision, "north") == (("10.103.0.0/16",), ("192.168.3.11",))
    assert problems(decision, "north") == {("spec.gatewayInfos[0].gatewayIP", "Protected")}


@by_member(
    wants="take replies of a Service or Pod of this cluster by naming its address as a gateway",
    stopped_by="this cluster's own CIDRs, which hold no gateway of others",
)
@pytest.mark.parametrize("address", ["10.96.0.10", "10.10.3.7"])
def test_an_address_of_this_cluster_as_gateway(address: str) -> None:
    """A ClusterIP and a Pod of this cluster are no gateways of others."""
    decision = decide(cluster("north", "10.103.0.0/16", gateways=(address, "192.168.3.11")))
    assert has(decision, "north") == (("10.103.0.0/16",), ("192.168.3.11",))
    assert problems(decision, "north") == {("spec.gatewayInfos[0].gatewayIP", "OverlapsLocal")}


@by_member(
    wants="receive packets for Pods of a cluster without Pod CIDRs by claiming a range around them",
    stopped_by="the Pods that a Node knows one by one, which no range of others may hold",
)
def test_a_range_around_pods_that_are_known_one_by_one() -> None:
    """Also one that appears later takes the range away from the other cluster, and not the other way round."""
    home = (node("g1", "192.0.2.1"), node("w1", "192.0.2.3"), gateway("g1", "192.0.2.1"))
    attacker = cluster("north", "10.103.0.0/16", "10.40.0.0/16", gateways=("10.40.0.6", "192.168.3.11"))
    pods = (pod("a", "w1", "10.40.0.5"), pod("b", "w1", "10.40.0.6"))
    before = decide(attacker, home=home, pod_routing=PodRouting.PER_POD)
    assert has(before, "north")[0] == ("10.40.0.0/16", "10.103.0.0/16")
    fresh = decide(attacker, *pods, home=home, pod_routing=PodRouting.PER_POD)
    settings = config("g1", enable_pod_to_pod=True, pod_routing=PodRouting.PER_POD)
    compiler = Compiler()
    compiler.compile(snapshot(*home, attacker), NO_FACTS, settings)
    after = compiler.compile(snapshot(*home, attacker, *pods), NO_FACTS, settings)
    for compiled in (fresh, after):
        assert has(compiled, "north") == (("10.103.0.0/16",), ("192.168.3.11",))
        assert ("spec.podCIDRs[0]", "OverlapsLocal") in problems(compiled, "north")


@by_member(
    wants="stop every agent with claims that all are in each other's way",
    stopped_by="one sort, and work only where ranges are nested: no set of claims costs more than its number",
)
def test_a_thousand_cidrs_of_each_that_all_overlap() -> None:
    """Thirty clusters with 1,024 CIDRs and 64 gateways each are decided in seconds, and nobody else is harmed."""
    attackers = [
        cluster(
            f"x{n}",
            "10.128.0.0/9",  # around everything that the others ask for, and too late
            *(f"10.{128 + n}.{i // 16}.{i % 16 * 16}/28" for i in range(1023)),
            gateways=(*(f"10.{128 + n}.200.{g}" for g in range(63)), "10.20.0.7"),
            created=NEW,
            granted={"10.128.0.0/9": LATER},
        )
        for n in range(30)
    ]
    settings = config("g1", enable_pod_to_pod=True)
    begin = time.process_time()
    compiled = compile_desired(snapshot(*HOME, WEST, *attackers), NO_FACTS, settings).state
    spent = time.process_time() - begin
    alone = compile_desired(snapshot(*HOME, WEST), NO_FACTS, settings).state
    assert compiled.clusters["west"] == alone.clusters["west"]
    for attacker in attackers:
        mine = compiled.clusters[attacker.cluster_id]
        assert (len(mine.cidrs), len(mine.gateways)) == (1023, 63)
    assert spent < 20, f"{spent:.1f} s"  # comparing each with each takes minutes


@by_member(
    wants="receive replies to another member's IPv6 gateway by claiming the IPv4 address that stands for it",
    stopped_by="240.0.0.0/4, the range of such addresses, in which no CIDR and no gateway is accepted",
)
def test_what_stands_for_an_ipv6_gateway() -> None:
    """Neither as a gateway nor in a CIDR, also where that range is listed."""
    victim = cluster("west", "10.102.0.0/16", gateways=("2001:db8:2::11",), created=NEW)
    mapped = source_of(ip_address("2001:db8:2::11"))
    around = ip_network((int(mapped), 8), strict=False)
    north = cluster("north", str(around), gateways=(str(mapped), "192.168.3.11"), created=OLD)
    decision = unharmed(victim, north, allowed_remote_cidrs=networks("10.0.0.0/8", str(around)))
    assert has(decision, "north") == ((), ("192.168.3.11",))
    assert {reason for _, reason in problems(decision, "north")} == {"NotUnicast"}


@by_member(
    wants="have one address written so that two programs read it differently",
    stopped_by="one reading of each text: what is not written as usual is refused, or told and used masked",
)
@pytest.mark.parametrize(
    "text",
    [
        "10.102.7.9/16",  # host bits
        "10.102.0.0/255.255.0.0",
        "10.102.0.0/0.0.255.255",
        "010.102.0.0/16",  # octal in inet_aton(3)
        "10.102/16",
        "0xa660000/16",
        "10.102.0.0/16 ",
        "10.102.0.0/+16",
        "\u0661\u0660.102.0.0/16",
        "::ffff:10.102.0.0/112",
        "10.102.0.0%eth0/16",
        "10.102.0.0/016",
    ],
)
def test_masks_and_host_bits(text: str) -> None:
    """However it is written, it does not become an address of another member's."""
    raw = {
        **RAW,
        "spec": {"clusterID": "north", "serviceCIDR": text, "gatewayInfos": [{"gatewayIP": "192.168.3.11"}]},
    }
    try:
        north = parse_object(raw).value
    except InputError:
        return  # refused as a whole, with a message
    assert isinstance(north, ClusterInfoImport)
    assert has(unharmed(WEST, north), "north")[0] == ()


@by_member(
    wants="stop agents, or jump the queue, by claims that make no sense",
    stopped_by="the annotation's one form: anything else counts as none, with a warning",
)
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        '{"10.102.0.0/16":' * 50_000,
        '{"10.102.0.0/16":"0000"}',
        '{"10.102.0.0/16":-1e999}',
        '{"10.102.0.0/16":"-"}',
        granted_text({f"10.{n // 250}.{n % 250}.0/24": "" for n in range(5000)}),
        7,
        ["10.102.0.0/16"],
    ],
)
def test_claims_that_make_no_sense(text: object) -> None:
    """The object counts by its age, and a warning says why."""
    metadata = {**RAW["metadata"], "annotations": {CLAIMS_ANNOTATION: text}}  # type: ignore[dict-item]
    spec = {
        "clusterID": "north",
        "serviceCIDR": "10.102.0.0/16",
        "podCIDRs": ["10.30.0.0/16"],
        "gatewayInfos": [{"gatewayIP": "192.168.3.11"}],
    }
    parsed = parse_object({**RAW, "metadata": metadata, "spec": spec})
    north = parsed.value
    assert isinstance(north, ClusterInfoImport)
    assert north.granted == {}
    assert [p.path for p in parsed.problems] == [f"metadata.annotations.{CLAIMS_ANNOTATION}"]
    assert has(unharmed(WEST, north), "north") == (("10.30.0.0/16",), ("192.168.3.11",))


@by_member(
    wants="be older than all others by leaving and joining again under an ID that sorts first",
    stopped_by="times of claims to the microsecond: IDs decide only between claims of one moment",
)
def test_an_id_that_sorts_first() -> None:
    """Of two objects of one second the claims' times decide, not the ID."""
    granted = dict.fromkeys(("10.102.0.0/16", "10.20.0.0/16", "192.168.2.11"), "2026-01-01T00:00:00.100000Z")
    west = replace(WEST, granted=granted)
    mine = dict.fromkeys(("10.102.0.0/16", "192.168.2.11"), "2026-01-01T00:00:00.900000Z")
    attacker = cluster("a", "10.102.0.0/16", gateways=("192.168.2.11",), created=OLD, granted=mine)
    assert has(unharmed(west, attacker), "a") == ((), ())


@by_member(
    wants="take another member's place with a second object that names its cluster ID",
    stopped_by="one object for one cluster: the older",
)
def test_a_second_object_for_a_members_id() -> None:
    """Whatever the second object says, also of its claims, the first one counts."""
    second = cluster(
        "west", "10.102.0.0/16", gateways=("192.168.3.11",), created=NEW, object_name="aa-clusterinfo"
    )
    second = replace(
        second, meta=meta(Kind.CLUSTER_INFO_IMPORT, "aa-clusterinfo", NEW), granted={"10.102.0.0/16": "0"}
    )
    decision = unharmed(WEST, second)
    assert [p.reason for p in decision.desired.problems if "aa-clusterinfo" in p.subject] == ["DuplicateClusterID"]
