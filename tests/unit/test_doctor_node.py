"""The doctor's rules of a Node: values in, findings out; one fault each, and nothing beside it."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from mcagent.core.doctor.catalogue import CAUSES, CHECKS, NODE_CHECKS
from mcagent.core.doctor.finding import Level, of_plain, worst
from mcagent.core.doctor.node import examine
from mcagent.core.doctor.observed import (
    AgentSeen,
    ApiSeen,
    ChainSeen,
    FilterSeen,
    HandshakeSeen,
    KernelSeen,
    NodeSeen,
    PathSeen,
    RouteSeen,
    RuleSeen,
    SwitchSeen,
    TunnelSeen,
)
from mcagent.core.doctor.status import agent_seen, outer_addresses
from mcagent.model.net import Address
from mcagent.model.problem import Problem, Severity

PEER: Address = ip_address("192.168.2.11")
TUNNEL = TunnelSeen(
    name="mcr-1",
    peer_kind="remote",
    peer="west",
    remote=PEER,
    bfd=True,
    seen=True,
    state="up",
    forwarding=True,
    remote_state="up",
    received=100,
    sent=100,
)
PATH = PathSeen(address=PEER, size=1500, small=True, full=True, passes=1500, ways=("icmp",))
SILENT_PATH = PathSeen(address=PEER, size=1500)
ROUTE = RouteSeen(
    destination=ip_network("10.2.0.0/16"), address=ip_address("10.2.128.0"), device="mc-gw0", table=28003
)
PODS = ip_network("10.1.1.0/24")
GOOD = NodeSeen(
    node="n1",
    agent=AgentSeen(version="1", role="gateway", ready=True, alive=True),
    switch=SwitchSeen(version="3.1.0", datapath="system", flows=50, tunnels=(TUNNEL,)),
    kernel=KernelSeen(
        kernel_datapath=True,
        host_mtu=1450,
        wanted_mtu=1450,
        uplink="eth0",
        uplink_mtu=1500,
        uplink_strict=True,
        routes=(ROUTE,),
        our_rules=2,
        backs=((PEER, "eth0"),),
    ),
    filters=FilterSeen(pods=(PODS,)),
    api=ApiSeen(server="https://api:6443", clock=0.3, asked=20),
    paths=(PATH,),
)


def told(seen: NodeSeen) -> dict[str, Level]:
    """Return the reasons of all findings that are not fine."""
    return {one.reason or one.check: one.level for one in examine(seen) if one.level is not Level.OK}


def test_a_good_node_is_fine_in_every_check() -> None:
    """There is one line for each check, and each says ✓; without encryption nothing is said of WireGuard."""
    found = examine(GOOD)
    assert [one.check for one in found] == [name for name in NODE_CHECKS if name != "wireguard"]
    assert worst(found) is Level.OK


def test_a_node_with_nothing_to_do_is_fine() -> None:
    """Without any gateway there is a bare bridge: no flows, no tunnels, no device, and nothing wrong with that."""
    seen = replace(
        GOOD,
        agent=replace(GOOD.agent, role="none"),
        switch=replace(GOOD.switch, flows=0, tunnels=()),
        kernel=replace(GOOD.kernel, host_mtu=0, routes=(), backs=()),
        paths=(),
    )
    assert told(seen) == {}


def tunnel(**change: object) -> NodeSeen:
    """Return a Node whose tunnel is another one, and whose peer answers probes."""
    return replace(GOOD, switch=replace(GOOD.switch, tunnels=(replace(TUNNEL, **change),)))  # type: ignore[arg-type]


DOWN = {"state": "down", "forwarding": False, "diagnostic": "Control Detection Time Expired"}
FAULTS = {
    "no answer of the agent": (
        replace(GOOD, agent=AgentSeen(error="no agent answers at 127.0.0.1:10351")), {"AgentSilent"}
    ),
    "a dead thread": (replace(GOOD, agent=replace(GOOD.agent, alive=False)), {"AgentThreadDead"}),
    "not ready": (
        replace(GOOD, agent=replace(GOOD.agent, checks=(("dataplane", "does not equal"),))), {"AgentNotReady"}
    ),
    "drained": (replace(GOOD, agent=replace(GOOD.agent, draining="drained: by hand")), {"Draining"}),
    "no ovsdb": (
        replace(GOOD, switch=SwitchSeen(error="connect: No such file"), paths=()),
        {"OvsdbAway", "datapath", "tunnels"},
    ),
    "no vswitchd": (
        replace(GOOD, switch=replace(GOOD.switch, vswitchd_error="refused", flows=None)),
        {"VswitchdAway", "tunnels"},
    ),
    "no bridge": (
        replace(GOOD, switch=SwitchSeen(version="3.1.0"), paths=()), {"BridgeMissing", "datapath", "tunnels"}
    ),
    "no flows": (replace(GOOD, switch=replace(GOOD.switch, flows=0)), {"NoFlows"}),
    "an old switch": (replace(GOOD, switch=replace(GOOD.switch, version="2.13.8")), {"VersionOld"}),
    "no module": (replace(GOOD, kernel=replace(GOOD.kernel, kernel_datapath=False)), {"NoKernelDatapath"}),
    "userspace without need": (
        replace(GOOD, switch=replace(GOOD.switch, datapath="netdev")), {"UserspaceDatapath"}
    ),
    "userspace by choice": (
        replace(GOOD, switch=replace(GOOD.switch, datapath="netdev"), userspace_chosen=True), set()
    ),
    "no API server": (replace(GOOD, api=ApiSeen(error="refused")), {"ApiAway", "permissions"}),
    "no API server since the start": (
        replace(
            GOOD,
            api=ApiSeen(error="refused"),
            agent=replace(GOOD.agent, checks=(("listed", "x"), ("dataplane", "y"))),
        ),
        {"ApiAway", "permissions"},
    ),
    "lost watches": (replace(GOOD, agent=replace(GOOD.agent, lost_kinds=("Node: cut",))), {"ApiAway"}),
    "a clock that is off": (replace(GOOD, api=replace(GOOD.api, clock=-42.0)), {"ClockOff"}),
    "a missing right": (
        replace(GOOD, api=replace(GOOD.api, forbidden=(("list", "gateways.x"),))), {"NotAllowed403"}
    ),
    "a missing tunnel": (
        replace(GOOD, agent=replace(GOOD.agent, missing_tunnels=(("mcr-2", "remote north"),))), {"TunnelMissing"}
    ),
    "a refused tunnel": (tunnel(error="could not add"), {"TunnelError"}),
    "a blocked port": (tunnel(**DOWN), {"PortBlocked"}),
    "a port blocked one way": (tunnel(state="init", forwarding=False), {"OneWay"}),
    "a peer that is down": (replace(tunnel(**DOWN), paths=(SILENT_PATH,)), {"PeerDown", "path-mtu"}),
    "a peer never heard": (tunnel(**DOWN, seen=False, received=0), {"PeerNeverHeard"}),
    "a Node of the own cluster never heard": (
        tunnel(**DOWN, seen=False, received=0, peer_kind="gateway"), {"PortBlocked"}
    ),
    "a peer that drains": (
        tunnel(forwarding=False, remote_diagnostic="Concatenated Path Down"), {"PathDown"}
    ),
    "a small MTU": (
        replace(GOOD, paths=(replace(PATH, full=False, passes=1400),)), {"MtuTooLarge"}
    ),
    "an MTU beyond the uplink's": (replace(GOOD, kernel=replace(GOOD.kernel, host_mtu=1500)), {"MtuDiffers"}),
    "a foreign route": (
        replace(GOOD, kernel=replace(GOOD.kernel, routes=(replace(ROUTE, device="tun0", table=52),))),
        {"RouteShadowed"},
    ),
    "no rules": (replace(GOOD, kernel=replace(GOOD.kernel, our_rules=0)), {"RulesMissing"}),
    "another way back": (
        replace(GOOD, kernel=replace(GOOD.kernel, backs=((PEER, "eth1"),))), {"RpFilterStrict"}
    ),
    "filtered packets": (replace(GOOD, kernel=replace(GOOD.kernel, reverse_path_drops=3)), {"RpFilterDrops"}),
    "no forwarding": (replace(GOOD, kernel=replace(GOOD.kernel, ip_forward=False)), {"ForwardingOff"}),
    "a masqueraded Pod": (
        replace(
            GOOD,
            filters=replace(
                GOOD.filters,
                connections=2,
                masqueraded=((ip_address("10.1.1.2"), ip_address("10.2.1.2"), ip_address("192.168.1.11")),),
            ),
        ),
        {"Masqueraded"},
    ),
    "a rule with our mark": (
        replace(
            GOOD, kernel=replace(GOOD.kernel, rules=(RuleSeen(priority=9, table=2, fwmark=0x1000, fwmask=0xF000),))
        ),
        {"MarkShared"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_and_nothing_beside_it(fault: str) -> None:
    """One fault in a good Node gives its reason, and no other; what cannot be looked at is skipped."""
    seen, reasons = FAULTS[fault]
    found = told(seen)
    assert set(found) == reasons
    assert {found[one] for one in reasons if one not in CAUSES} <= {Level.SKIPPED}


def chain(*rules: str, hook: str = "", policy: str = "accept", **more: object) -> NodeSeen:
    """Return a Node with one chain of somebody else's."""
    made = ChainSeen(family="ip", table="t", name="c", hook=hook, policy=policy, rules=rules)
    made = replace(made, **more)  # type: ignore[arg-type]
    return replace(GOOD, filters=replace(GOOD.filters, chains=(made,)))


@pytest.mark.parametrize(
    ("seen", "reasons"),
    [
        (chain(hook="forward", policy="drop"), {"ForwardPolicyDrop"}),
        (chain('iifname "mc-gw0" accept', hook="forward", policy="drop"), set()),
        (chain("ip daddr 10.1.0.0/16 counter accept", hook="forward", policy="drop"), set()),
        (chain("ip daddr 10.9.0.0/16 counter accept", hook="forward", policy="drop"), {"ForwardPolicyDrop"}),
        (chain("-d 10.1.0.0/16 -j ACCEPT", hook="forward", policy="drop"), set()),
        (chain("udp dport 6081 counter drop", hook="input"), {"RuleDropsTunnel"}),
        (chain("udp dport { 4789, 6081 } drop", hook="input"), {"RuleDropsTunnel"}),
        (chain("-p udp -m udp dport 6081 -j DROP", hook="input"), {"RuleDropsTunnel"}),
        (chain("udp dport 60811 drop", hook="input"), set()),
        (chain('oifname "mc-gw0" drop', hook="forward"), {"RuleDropsDevice"}),
        (chain("tcp dport 22 accept", hook="input", policy="drop"), {"InputPolicyDrop"}),
        (chain("udp dport 6081 accept", hook="input", policy="drop"), set()),
        (chain("masquerade", type="nat", hook="postrouting", priority=0), {"NatBeforeOurs"}),
        (chain("masquerade", type="nat", hook="postrouting", priority=100), set()),
        (chain("meta mark set meta mark | 0x00001000"), {"MarkShared"}),
        (chain("meta mark & 0x00004000 == 0x00004000 masquerade"), set()),
        (chain("meta mark set mark and 0xffffbfff xor 0x4000"), set()),
        (chain("meta mark set mark and 0xffffefff"), {"MarkShared"}),
        (chain("ct mark 0x00001000 accept"), {"MarkShared"}),
        (chain("ip daddr 10.0.0.1 tcp dport 0x1000"), set()),
    ],
)
def test_rules_of_others_are_read(seen: NodeSeen, reasons: set[str]) -> None:
    """What a foreign rule says of our port, device, mark or of forwarding counts; the rest does not."""
    assert set(told(seen)) == reasons


def test_the_mtu_to_set_is_told() -> None:
    """It is what passes, less what the tunnel adds."""
    seen = replace(GOOD, paths=(replace(PATH, full=False, passes=1400, told=0),))
    (one,) = (one for one in examine(seen) if one.reason == "MtuTooLarge")
    assert "mtu: 1350 in the configuration" in one.do


def test_what_the_agents_probes_found_is_told_where_the_doctor_measured_nothing() -> None:
    """Behind WireGuard, or where no ICMP passes; what the doctor measured itself says more."""
    problem = Problem("ClusterInfoImport kube-system/w", "spec.gatewayInfos", "PathMtu", "x", Severity.WARNING)
    agent = replace(GOOD.agent, problems=(problem,))
    assert told(replace(GOOD, agent=agent))["PathMtu"] is Level.WARNING
    narrow = replace(GOOD, agent=agent, paths=(replace(PATH, full=False, passes=1400),))
    assert "PathMtu" not in told(narrow)


def test_problems_keep_their_severity_and_have_words() -> None:
    """A refused CIDR is ✗ in its own check; a silent peer that the doctor explains itself is not told twice."""
    problems = (
        Problem("ClusterInfoImport kube-system/w", "spec.podCIDRs[0]", "OverlapsLocal", "10.1.0.0/16 is ours"),
        Problem("ClusterInfoImport kube-system/w", "spec", "PeerSilent", "nothing came", Severity.WARNING),
        Problem("Gateway kube-system/g", "", "NewReason", "of a later version"),
    )
    seen = replace(tunnel(**DOWN, seen=False, received=0), agent=replace(GOOD.agent, problems=problems))
    found = {one.reason: one for one in examine(seen)}
    assert found["OverlapsLocal"].check == "cidrs"
    assert found["OverlapsLocal"].level is Level.FAILED
    assert "another network" in found["OverlapsLocal"].do
    assert found["NewReason"].check == "input"
    assert "PeerSilent" not in found
    quiet = replace(GOOD, agent=replace(GOOD.agent, problems=problems))
    assert told(quiet)["PeerSilent"] is Level.WARNING


def test_an_antrea_peer_needs_no_bfd() -> None:
    """Its silence is a fault only on the gateway that it should send to, which the agent says by a problem."""
    known = replace(GOOD.agent, antrea=("west",))
    heard = replace(tunnel(**DOWN, seen=False), agent=known)
    assert told(heard) == {}
    assert any("run Antrea: west" in one.seen for one in examine(heard))
    unheard = replace(tunnel(**DOWN, seen=False, received=0), agent=known)
    assert told(unheard) == {}
    silent = (Problem("ClusterInfoImport kube-system/w", "spec", "PeerSilent", "nothing came", Severity.WARNING),)
    assert set(told(replace(unheard, agent=replace(known, problems=silent)))) == {"PeerNeverHeard"}


def encrypted(**peer: object) -> NodeSeen:
    """Return a Node whose tunnel is behind WireGuard, and down."""
    shaken = replace(HandshakeSeen(cluster="west", gateway=str(PEER), state="established", port=51821), **peer)  # type: ignore[arg-type]
    end = ip_address("240.0.0.1")
    inside = tunnel(**DOWN, remote=end)
    return replace(inside, agent=replace(GOOD.agent, wireguard=(shaken,)), encrypts=True, outer={end: PEER})


def test_encryption_without_a_handshake_names_its_cause() -> None:
    """The likeliest cause is shown; a tunnel behind WireGuard says nothing more."""
    causes = ("UDP port 51821 is closed", "or not")
    seen = encrypted(state="never", text="has never shaken hands", causes=causes)
    (one,) = (one for one in examine(seen) if one.level is Level.FAILED)
    assert one.reason == "NoHandshake"
    assert "UDP port 51821 is closed" in one.seen


def test_a_gateway_that_is_reached_in_the_clear_is_named() -> None:
    """A gateway without encryption is a warning with what to do; a gateway with a session beside it is fine."""
    text = "traffic is NOT ENCRYPTED: it has published no WireGuard key"
    clear_peer = HandshakeSeen(cluster="west", gateway=str(PEER), state="clear", text=text)
    encrypted_peer = HandshakeSeen(cluster="south", gateway="192.168.3.11", state="established", port=51821)
    seen = replace(GOOD, agent=replace(GOOD.agent, wireguard=(clear_peer, encrypted_peer)), encrypts=True)
    (finding,) = (finding for finding in examine(seen) if finding.level is not Level.OK)
    assert (finding.check, finding.reason, finding.level) == ("wireguard", "ReachedInClear", Level.WARNING)
    assert (finding.subject, finding.seen) == (f"west {PEER}", text)
    assert "encryptionFallback: allowClear" in finding.why
    assert finding.do == "trafficEncryptionMode: wireGuard in that cluster, too"
    assert told(replace(seen, encrypts=False)) == {}


def test_wireguards_port_that_was_closed_after_the_handshake_is_named() -> None:
    """The session lasts three minutes more; BFD inside it ends at once."""
    (one,) = (one for one in examine(encrypted()) if one.level is Level.FAILED)
    assert (one.reason, "open UDP 51821" in one.do) == ("PortBlocked", True)


def test_every_cause_has_a_check_and_words_that_can_be_filled_in() -> None:
    """The catalogue is whole: no cause without check, level, why and what to type."""
    for reason, cause in CAUSES.items():
        assert cause.check in CHECKS, reason
        assert Level(cause.level) in {Level.WARNING, Level.FAILED}, reason
        assert cause.why, reason
        assert cause.do, reason


def test_findings_survive_json() -> None:
    """What another Node's doctor says is read back as it was; what is none is left out."""
    for one in examine(FAULTS["a blocked port"][0]):
        assert of_plain(one.plain()) == one
    assert of_plain({"level": "great", "check": "tunnels"}) is None
    assert of_plain({"level": "ok", "check": "<script>"}) is None


def test_a_status_is_read_even_where_it_makes_no_sense() -> None:
    """Another version's /status costs what is missing, and raises nothing."""
    assert agent_seen({}).alive is False
    clusters = {"west": {"antrea": True}, "north": {"antrea": False}, "south": None}
    assert agent_seen({"summary": {"clusters": clusters}}).antrea == ("west",)
    odd = {"checks": "x", "problems": [1, {}], "drain": [], "encryption": {"peers": None}, "gateways": [[]]}
    assert agent_seen(odd).problems == (Problem("", "", "", ""),)
    assert outer_addresses({"tunnels": [{"name": "a", "remoteIP": "no"}]}) == {}
    status = {
        "tunnels": [{"name": "mcr-1", "remoteIP": "240.0.0.1"}],
        "gateways": [{"gateways": [{"tunnel": "mcr-1", "address": "192.168.2.11"}]}],
    }
    assert outer_addresses(status) == {ip_address("240.0.0.1"): PEER}
