"""The doctor's rules of a Node: values in, findings out; one fault each, and nothing beside it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from enum import EnumType
from ipaddress import ip_address
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import structs

from devtools import doctor_coverage as coverage
from devtools.doctor_page import all_checks, tables
from mcagent.api.codec import from_json, to_json
from mcagent.api.doctor import CheckFinding, FindingLevel, NodeReport
from mcagent.api.status import (
    ClusterStatus,
    DrainStatus,
    EncryptedPeer,
    EncryptionStatus,
    GatewayGroup,
    GatewayStatus,
    InformerStatus,
    ProblemStatus,
    ReadinessCheck,
    Status,
    Summary,
    TunnelStatus,
)
from mcagent.core.causes import CAUSES as PROBLEM_CAUSES
from mcagent.dataplane.nft.observe import ForeignChain
from mcagent.doctor.catalogue import Scope, entries, examine, names
from mcagent.doctor.check import received, run, worst
from mcagent.doctor.checks import node as node_checks
from mcagent.doctor.checks.node import openvswitch, plan
from mcagent.doctor.checks.node.api import ApiServer
from mcagent.doctor.checks.node.forwarding import ForwardingSwitches
from mcagent.doctor.checks.node.masquerade import Connections
from mcagent.doctor.checks.node.routes import RouteLookups
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.probe import ProbedPath
from mcagent.doctor.readings.switch import Switch
from mcagent.doctor.readings.underlay import gateway_addresses
from mcagent.model.config import DatapathChoice, TrafficEncryption
from mcagent.model.dataplane.conntrack import TableUse
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import Link, PeerKind, Resource
from mcagent.model.errors import BackendError, McagentError
from mcagent.model.net import Address, Network
from mcagent.model.plan import Step
from tests.worlds.examined_node import (
    API,
    LOOKUP,
    PATH,
    PEER,
    PODS,
    PORT,
    READERS,
    STATUS,
    SWITCH,
    TUNNEL,
    UNDERLAY,
    findings,
    node,
    told,
)

SILENT_PATH = ProbedPath(address=PEER, size=1500)


GOOD = node()


def agent(**values: Any) -> ExaminedNode:
    """Return a Node whose agent says something else."""
    return node(structs.replace(STATUS, **values))


def switch(**values: Any) -> ExaminedNode:
    """Return a Node whose Open vSwitch is another one."""
    return node(switch=replace(SWITCH, **values))


def test_a_good_node_is_fine_in_every_check() -> None:
    """There is one line for each check, and each says ✓; without encryption nothing is said of WireGuard.

    Nor of a Pod that is not probed.
    """
    results = findings(GOOD)
    assert [finding.check for finding in results] == [
        name for name in names(Scope.NODE) if name not in {"wireguard", "pod-path"}
    ]
    assert worst(results) is FindingLevel.OK


def test_a_node_with_nothing_to_do_is_fine() -> None:
    """Without any gateway there is a bare bridge: no flows, no tunnels, no device, and nothing wrong with that."""
    examined = node(
        structs.replace(STATUS, summary=Summary(role="none")),
        switch=replace(SWITCH, flows=0, tunnels=()),
        underlay=replace(UNDERLAY, host_mtu=0),
        lookups=RouteLookups(rule_exists=True),
        return_devices=(),
        paths=(),
    )
    assert told(examined) == {}


def tunnel(*, status: Status = STATUS, readings: Mapping[str, Any] | None = None, **change: Any) -> ExaminedNode:
    """Return a Node whose tunnel is another one, and whose peer answers probes."""
    port = {name: change.pop(name) for name in ("bfd_seen", "peer_kind", "remote_ip") if name in change}
    other = replace(TUNNEL, port=replace(PORT, **port), **change)
    return node(status, switch=replace(SWITCH, tunnels=(other,)), **(readings or {}))


DOWN: dict[str, Any] = {
    "bfd_status": {"state": "down", "forwarding": "false", "diagnostic": "Control Detection Time Expired"}
}
NEVER_HEARD: dict[str, Any] = {**DOWN, "bfd_seen": False, "received": 0}
OF_THE_BRIDGE = {"datapath", "tunnels", "conntrack"}  # checks that are skipped without it
NO_API = ApiServer(error="refused")
FAULTS = {
    "no answer of the agent": (node(Status(), error="no agent answers at 127.0.0.1:10351"), {"AgentSilent"}),
    "a dead thread": (agent(alive=False), {"AgentThreadDead"}),
    "not ready": (agent(checks=(ReadinessCheck(name="dataplane", text="does not equal"),)), {"AgentNotReady"}),
    "drained": (agent(drain=DrainStatus(phase="drained", why="by hand")), {"Draining"}),
    "no ovsdb": (
        node(switch=Switch(error="connect: No such file"), paths=()), {"OvsdbAway", *OF_THE_BRIDGE}
    ),
    "no vswitchd": (switch(vswitchd_error="refused", flows=None), {"VswitchdAway", "tunnels", "conntrack"}),
    "no bridge": (node(switch=Switch(version="3.1.0"), paths=()), {"BridgeMissing", *OF_THE_BRIDGE}),
    "a closed port before there is a bridge": (
        node(
            switch=Switch(version="3.1.0"),
            paths=(),
            chains=(ForeignChain(family="inet", table="t", name="c", hook="input", policy="drop", rules=()),),
        ),
        {"BridgeMissing", "InputPolicyDrop", *OF_THE_BRIDGE},
    ),
    "a held datapath, from which no peer is heard": (
        node(switch=replace(SWITCH, is_waiting=True, tunnels=(replace(TUNNEL, bfd_status={"state": "down"}),))),
        {"DatapathHeld", "tunnels"},
    ),
    "no flows": (switch(flows=0), {"NoFlows"}),
    "an old switch": (switch(version="2.13.8"), {"VersionOld"}),
    "no module": (node(kernel_datapath=False), {"NoKernelDatapath"}),
    "userspace without need": (switch(datapath=DatapathType.NETDEV), {"UserspaceDatapath"}),
    "userspace by choice": (
        node(
            config={"datapath": DatapathChoice.NETDEV}, switch=replace(SWITCH, datapath=DatapathType.NETDEV)
        ),
        set(),
    ),
    "no API server": (node(api=NO_API), {"ApiAway", "permissions"}),
    "no API server since the start": (
        node(
            structs.replace(
                STATUS, checks=tuple(ReadinessCheck(name=name, text="x") for name in ("listed", "dataplane"))
            ),
            api=NO_API,
        ),
        {"ApiAway", "permissions"},
    ),
    "lost watches": (agent(informers=(InformerStatus(kind="Node", synced=True, error="cut"),)), {"ApiAway"}),
    "a clock that is off": (node(api=replace(API, clock=-42.0)), {"ClockOff"}),
    "a missing right": (node(api=replace(API, forbidden=(("list", "gateways.x"),))), {"NotAllowed403"}),
    "a missing tunnel": (
        agent(tunnels=(TunnelStatus(name="mcr-2", peer_kind="remote", peer="north"),)), {"TunnelMissing"}
    ),
    "a refused tunnel": (tunnel(error="could not add"), {"TunnelError"}),
    "a blocked port": (tunnel(**DOWN), {"PortBlocked"}),
    "a port blocked one way": (tunnel(bfd_status={"state": "init"}), {"OneWay"}),
    "a peer that is down": (tunnel(**DOWN, readings={"paths": (SILENT_PATH,)}), {"PeerDown", "path-mtu"}),
    "a peer never heard": (tunnel(**NEVER_HEARD), {"PeerNeverHeard"}),
    "a Node of the own cluster never heard": (
        tunnel(**NEVER_HEARD, peer_kind=PeerKind.GATEWAY), {"PortBlocked"}
    ),
    "a peer that drains": (
        tunnel(bfd_status={"state": "up", "remote_diagnostic": "Concatenated Path Down"}), {"PathDown"}
    ),
    "a small MTU": (node(paths=(replace(PATH, full=False, passes=1400),)), {"MtuTooLarge"}),
    "an MTU beyond the uplink's": (node(underlay=replace(UNDERLAY, host_mtu=1500)), {"MtuDiffers"}),
    "a foreign route": (
        node(lookups=RouteLookups(lookups=(replace(LOOKUP, device="tun0", table=52),), rule_exists=True)),
        {"RouteShadowed"},
    ),
    "no rules": (node(lookups=RouteLookups(lookups=(LOOKUP,))), {"RulesMissing"}),
    "another way back": (node(return_devices=((PEER, "eth1"),)), {"RpFilterStrict"}),
    "filtered packets": (node(dropped=3), {"RpFilterDrops"}),
    "no forwarding": (
        node(forwarding=ForwardingSwitches(globally=False, off=("cni0", "mc-gw0"))), {"ForwardingOff"}
    ),
    "no forwarding from our device": (node(forwarding=ForwardingSwitches(off=("mc-gw0",))), {"ForwardingOff"}),
    "forwarding by each device": (node(forwarding=ForwardingSwitches(globally=False)), set()),
    "a full table of connections": (node(table_use=TableUse(entries=3, limit=3)), {"ConntrackFull"}),
    "a table of connections that is nearly full": (
        node(table_use=TableUse(entries=90, limit=100)), {"ConntrackNearlyFull"}
    ),
    "a table of connections that was full": (
        node(table_use=TableUse(entries=1, limit=3, refused=9)), {"ConntrackWasFull"}
    ),
    "no table of connections": (node(table_use=None), set()),
    "a masqueraded Pod": (
        node(
            connections=Connections(
                count=2,
                translated=((ip_address("10.1.1.2"), ip_address("10.2.1.2"), ip_address("192.168.1.11")),),
            )
        ),
        {"Masqueraded"},
    ),
    "netfilter that cannot be read": (
        node(chains=BackendError("nft", "list", "ruleset", "not allowed")),
        {"forwarding", "firewall", "tunnel-nat", "cni", "masquerade"},
    ),
    "a difference from the desired state": (
        node(differences=(Step(old=Link(name="mc-gw0", mtu=1450, forwarding=False)),)), {"Differs"}
    ),
    "chains of iptables-legacy that cannot be read": (
        node(legacy_chains=BackendError("iptables-legacy-save", "list", "tables filter", "No such file")),
        {"forwarding", "firewall", "tunnel-nat", "cni", "masquerade"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_and_nothing_beside_it(fault: str) -> None:
    """One fault in a good Node gives its reason, and no other; what cannot be looked at is skipped."""
    examined, reasons = FAULTS[fault]
    levels = told(examined)
    assert set(levels) == reasons
    skipped = {finding.check for finding in findings(examined) if finding.level == FindingLevel.SKIPPED}
    assert {reason for reason in reasons if reason in names(Scope.NODE)} == skipped


@pytest.mark.parametrize("name", READERS)
def test_what_cannot_be_read_is_never_fine(name: str) -> None:
    """A check that reads something reports that it could not, whatever else it reads."""
    failing: dict[str, Any] = {name: BackendError("kernel", "read", name, "not permitted")}
    passed = []
    for entry in entries(Scope.NODE):
        examined = node(**failing)
        results = run(entry.check, entry.examine, examined)
        if READERS[name] in examined.requested:
            passed += [finding for finding in results if finding.level == FindingLevel.OK]
    assert passed == []


def test_without_agent_and_objects_problems_of_the_input_are_unknown() -> None:
    """Checks that only report the agent's problems do not pass when there is nobody to find any."""
    silent = node(Status(), error="no answer", problems_error="Gateway: connection refused")
    levels = told(silent)
    assert levels == {"AgentSilent": "failed"} | dict.fromkeys(
        ("cidrs", "services", "input", "pod-routing"), "skipped"
    )


def sample(resource_type: Any) -> Any:
    """Return a resource of a type, with a value of the right type in each field."""
    values: dict[Any, Any] = {str: "x", int: 1, float: 1.0, bool: False, Address: PEER, Network: PODS}
    hints = get_type_hints(resource_type)
    required = [field.name for field in fields(resource_type) if field.default is field.default_factory is MISSING]
    return resource_type(
        **{
            name: values[hints[name]]
            if hints[name] in values
            else next(iter(hints[name]))
            if isinstance(hints[name], EnumType)
            else (PEER, 1)
            if name == "endpoint"
            else ()
            for name in required
        }
    )


def types_in(union: Any) -> set[Any]:
    """Return the types of a union of unions."""
    return {part for member in get_args(union) for part in (types_in(member) or {member})}


def test_every_type_of_resource_has_a_check() -> None:
    """A new type of the dataplane model needs an entry in the table of docs/doctor.md, with checks of a Node."""
    assert coverage.SET.keys() == types_in(Resource)
    rows = [checks for _, checks in coverage.SET.values()] + list(coverage.NEEDED.values())
    assert all(checks and set(checks) <= set(names(Scope.NODE)) for checks in rows)
    assert {check for checks in rows for check in checks} == set(names(Scope.NODE))


@pytest.mark.parametrize("resource_type", coverage.SET, ids=lambda resource_type: resource_type.__name__)
def test_a_difference_of_every_type_is_a_finding(resource_type: type[Resource]) -> None:
    """What is missing, what differs and what is not in the desired state: each is named, with its type."""
    resource = sample(resource_type)
    for step in (Step(new=resource), Step(old=resource), Step(old=resource, new=resource)):
        (finding,) = plan.examine(node(differences=(step, step)))
        assert (finding.level, finding.reason, finding.subject) == ("failed", "Differs", resource_type.__name__)
        assert finding.seen.endswith("(and 1 more)")


def test_only_a_running_agent_knows_its_desired_state() -> None:
    """Its own findings count, of this check alone; without an agent, a difference is a warning."""
    differs = plan.CHECK.finding("Differs", "missing: x", subject="Link", seconds=2)
    report = NodeReport(findings=(differs, openvswitch.CHECK.passed("not asked")))
    examined = ExaminedNode(GOOD.settings, STATUS, agent_report=lambda: report)
    assert run(plan.CHECK, plan.examine, examined) == [differs]
    earlier = ExaminedNode(GOOD.settings, STATUS, agent_report=NodeReport)
    assert [finding.level for finding in run(plan.CHECK, plan.examine, earlier)] == ["skipped"]
    step = Step(new=Link(name="mc-gw0", mtu=1450))
    assert told(node(Status(), error="no answer", differences=(step,)))["Differs"] == "warning"


def chain(*rules: str, table: str = "t", hook: str = "", policy: str = "accept", **fields: Any) -> ExaminedNode:
    """Return a Node with one foreign chain."""
    return node(
        chains=(ForeignChain(family="ip", table=table, name="c", hook=hook, policy=policy, rules=rules, **fields),)
    )


@pytest.mark.parametrize(
    ("examined", "reasons"),
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
        (chain("ip daddr 10.0.0.1 tcp dport 0x1000"), set()),
        (chain("ip daddr 192.168.2.11 udp dport 6081 counter jump KUBE-EXT-X", table="nat"), {"TranslatesTunnel"}),
        (chain("ip daddr 192.168.2.0/24 udp dport { 53, 6081 } dnat to 10.1.1.7:6081"), {"TranslatesTunnel"}),
        (chain("ip6 daddr 2001:db8::2 udp dport 3784 redirect to :9", type="nat"), {"TranslatesTunnel"}),
        (chain("-d 192.168.2.11/32 -p udp -m udp dport 6081 -j DNAT", table="nat(legacy)"), {"TranslatesTunnel"}),
        (chain("udp dport 6081 redirect to :9", type="nat"), {"TranslatesTunnel"}),
        (chain("ip daddr @addresses udp dport 6081 dnat to 10.1.1.7"), {"TranslatesTunnel"}),
        (chain("ip daddr 10.0.0.1 udp dport 6081 dnat to 10.1.1.7"), set()),
        (chain("ip daddr 192.168.2.11 udp dport 60811 dnat to 10.1.1.7"), set()),
        (chain("ip daddr 192.168.2.11 udp dport 51821 dnat to 10.1.1.7"), set()),
        (chain("ip daddr 192.168.2.11 tcp dport 6081 dnat to 10.1.1.7"), set()),
        (chain("ip daddr 192.168.2.11 udp dport 6081 counter jump LOGGING", table="filter"), set()),
        (chain("-d 192.168.2.11/32 -p udp -m udp dport 6081 -j RETURN", table="nat(legacy)"), set()),
    ],
)
def test_rules_of_others_are_read(examined: ExaminedNode, reasons: set[str]) -> None:
    """What a foreign rule says of our port, device, mark or of forwarding counts; the rest does not."""
    assert set(told(examined)) == reasons


def test_wireguards_port_may_not_be_translated_where_the_node_encrypts() -> None:
    """Its packets are the tunnel's then."""
    rules = ("ip daddr 192.168.2.11 udp dport 51821 dnat to 10.1.1.7",)
    chains = (ForeignChain(family="ip", table="nat", name="c", rules=rules),)
    examined = node(config={"encryption": TrafficEncryption.WIREGUARD}, chains=chains)
    assert "TranslatesTunnel" in told(examined)


def problem(path: str, reason: str, message: str, severity: str = "error") -> ProblemStatus:
    """Return a problem of a cluster."""
    subject = "ClusterInfoImport kube-system/w"
    return ProblemStatus(subject=subject, path=path, reason=reason, message=message, severity=severity)


def test_the_mtu_to_set_is_told() -> None:
    """It is what passes, less what the tunnel adds."""
    examined = node(paths=(replace(PATH, full=False, passes=1400),))
    (finding,) = (finding for finding in findings(examined) if finding.reason == "MtuTooLarge")
    assert "mtu: 1350 in the configuration" in finding.do


def test_what_the_agents_probes_found_is_told_where_the_doctor_measured_nothing() -> None:
    """Behind WireGuard, or where no ICMP passes; what the doctor measured itself says more."""
    status = structs.replace(STATUS, problems=(problem("spec.gatewayInfos", "PathMtu", "x", "warning"),))
    assert told(node(status))["PathMtu"] == FindingLevel.WARNING
    assert "PathMtu" not in told(node(status, paths=(replace(PATH, full=False, passes=1400),)))


def test_problems_keep_their_severity_and_have_words() -> None:
    """A refused CIDR is ✗ in its own check; a silent peer that the doctor explains itself is not told twice."""
    problems = (
        problem("spec.podCIDRs[0]", "OverlapsLocal", "10.1.0.0/16 is ours"),
        problem("spec", "PeerSilent", "nothing came", "warning"),
        problem("", "NewReason", "of a later version"),
    )
    status = structs.replace(STATUS, problems=problems)
    by_reason = {finding.reason: finding for finding in findings(tunnel(status=status, **NEVER_HEARD))}
    assert by_reason["OverlapsLocal"].check == "cidrs"
    assert by_reason["OverlapsLocal"].level == FindingLevel.FAILED
    assert "another network" in by_reason["OverlapsLocal"].do
    assert by_reason["NewReason"].check == "input"
    assert "PeerSilent" not in by_reason
    assert told(node(status))["PeerSilent"] == FindingLevel.WARNING


def test_an_antrea_peer_needs_no_bfd() -> None:
    """Its silence is a fault only on the gateway that it should send to, which the agent says by a problem."""
    status = structs.replace(
        STATUS, summary=Summary(role="gateway", clusters={"west": ClusterStatus(antrea=True)})
    )
    heard = tunnel(status=status, **{**NEVER_HEARD, "received": 100})
    assert told(heard) == {}
    assert any("run Antrea: west" in finding.seen for finding in findings(heard))
    assert told(tunnel(status=status, **NEVER_HEARD)) == {}
    silent = structs.replace(status, problems=(problem("spec", "PeerSilent", "nothing came", "warning"),))
    assert set(told(tunnel(status=silent, **NEVER_HEARD))) == {"PeerNeverHeard"}


WIREGUARD = {"encryption": TrafficEncryption.WIREGUARD}


def encrypted(**peer: Any) -> ExaminedNode:
    """Return a Node whose tunnel is behind WireGuard, and down."""
    session = structs.replace(
        EncryptedPeer(cluster="west", gateway=str(PEER), state="established", port=51821), **peer
    )
    end = "240.0.0.1"
    status = structs.replace(
        STATUS,
        encryption=EncryptionStatus(peers=(structs.replace(session, **peer),)),
        tunnels=(TunnelStatus(name="mcr-1", remote_ip=end, exists=True),),
        gateways=(GatewayGroup(gateways=(GatewayStatus(tunnel="mcr-1", address=str(PEER)),)),),
    )
    down = replace(TUNNEL, port=replace(PORT, remote_ip=ip_address(end)), **DOWN)
    return node(status, config=WIREGUARD, switch=replace(SWITCH, tunnels=(down,)))


def test_encryption_without_a_handshake_names_its_cause() -> None:
    """The likeliest cause is shown; a tunnel behind WireGuard says nothing more."""
    causes = ("UDP port 51821 is closed", "or not")
    examined = encrypted(state="never", text="has never shaken hands", causes=causes)
    (finding,) = (finding for finding in findings(examined) if finding.level == FindingLevel.FAILED)
    assert finding.reason == "NoHandshake"
    assert "UDP port 51821 is closed" in finding.seen


def test_a_gateway_that_is_reached_in_the_clear_is_named() -> None:
    """A gateway without encryption is a warning with what to do; a gateway with a session beside it is fine."""
    text = "traffic is NOT ENCRYPTED: it has published no WireGuard key"
    clear_peer = EncryptedPeer(cluster="west", gateway=str(PEER), state="clear", text=text)
    encrypted_peer = EncryptedPeer(cluster="south", gateway="192.168.3.11", state="established", port=51821)
    status = structs.replace(STATUS, encryption=EncryptionStatus(peers=(clear_peer, encrypted_peer)))
    (finding,) = (
        finding for finding in findings(node(status, config=WIREGUARD)) if finding.level != FindingLevel.OK
    )
    assert (finding.check, finding.reason, finding.level) == ("wireguard", "ReachedInClear", FindingLevel.WARNING)
    assert (finding.subject, finding.seen) == (f"west {PEER}", text)
    assert "encryptionFallback: allowClear" in finding.why
    assert finding.do == "trafficEncryptionMode: wireGuard in that cluster as well"
    assert told(node(status)) == {}


def test_a_device_without_a_session_is_named() -> None:
    """The peer is reached by the first device, so it is a warning, with the ports; complete sessions pass."""
    causes = ("one of UDP ports 51822 to 51824 of 192.168.3.11 is closed",)
    peer = EncryptedPeer(
        cluster="south",
        gateway="192.168.3.11",
        state="established",
        sessions=3,
        devices=4,
        text="3 of 4",
        causes=causes,
    )
    status = structs.replace(STATUS, encryption=EncryptionStatus(peers=(peer,)))
    (finding,) = (
        finding for finding in findings(node(status, config=WIREGUARD)) if finding.level != FindingLevel.OK
    )
    assert (finding.reason, finding.level) == ("FewerDevices", FindingLevel.WARNING)
    assert causes[0] in finding.seen
    complete = structs.replace(STATUS, encryption=EncryptionStatus(peers=(structs.replace(peer, sessions=4),)))
    assert told(node(complete, config=WIREGUARD)) == {}


def test_a_node_that_is_reached_in_the_clear_is_named() -> None:
    """While a cluster is changed over to encryption between its Nodes: which Node is missing."""
    clear_peer = EncryptedPeer(node="w2", gateway="192.168.1.13", state="clear", text="is reached unencrypted")
    status = structs.replace(STATUS, encryption=EncryptionStatus(node_mode="preferred", peers=(clear_peer,)))
    (finding,) = (
        finding for finding in findings(node(status, config=WIREGUARD)) if finding.level != FindingLevel.OK
    )
    assert (finding.reason, finding.level) == ("NodeReachedInClear", FindingLevel.WARNING)
    assert finding.subject == "Node w2 192.168.1.13"


def test_wireguards_port_that_was_closed_after_the_handshake_is_named() -> None:
    """The session lasts three minutes more; BFD inside it ends at once."""
    (finding,) = (finding for finding in findings(encrypted()) if finding.level == FindingLevel.FAILED)
    assert (finding.reason, "open UDP 51821" in finding.do) == ("PortBlocked", True)


def test_every_cause_has_a_check_and_words_that_can_be_filled_in() -> None:
    """The catalogue is whole: no cause without level, why and what to type, no problem without a check."""
    checks = {check.name: check for check in all_checks()}
    assert {cause.check for cause in PROBLEM_CAUSES.values()} <= set(checks)
    reasons = [reason for check in checks.values() for reason in check.causes]
    assert len(reasons) == len(set(reasons)), "one reason, one check"
    for check in checks.values():
        for reason, cause in check.causes.items():
            assert cause.level in {FindingLevel.WARNING, FindingLevel.FAILED}, reason
            assert cause.why, reason
            assert cause.do, reason


def test_findings_survive_json() -> None:
    """What another Node's doctor says is read back as it was; what is none is left out."""
    results = findings(FAULTS["a blocked port"][0])
    report = from_json(NodeReport, to_json(NodeReport(findings=results)), "an agent")
    assert received(report.findings, names(Scope.NODE)) == results
    odd = (CheckFinding(level="great", check="tunnels"), CheckFinding(level="ok", check="<script>"))
    assert received(odd, names(Scope.NODE)) == ()
    (escaped,) = received((CheckFinding(check="agent", seen="\x1b[2J"),), names(Scope.NODE))
    assert escaped.seen == "\\x1b[2J"


def test_a_status_is_read_even_where_it_makes_no_sense() -> None:
    """Another version's /status costs what is missing; one that has other types is an error with its place."""
    assert from_json(Status, {}, "an agent").alive is False
    clusters = {"west": {"antrea": True}, "north": {"antrea": False}, "south": {}}
    assert from_json(Status, {"summary": {"clusters": clusters}}, "an agent").summary.antrea_clusters == ["west"]
    with pytest.raises(McagentError, match=r"an agent: .* `\$.problems\[0\]`"):
        from_json(Status, {"problems": [1, {}]}, "an agent")
    assert gateway_addresses(Status(tunnels=(TunnelStatus(name="a", remote_ip="no"),))) == {}
    status = {
        "tunnels": [{"name": "mcr-1", "remoteIP": "240.0.0.1"}],
        "gateways": [{"gateways": [{"tunnel": "mcr-1", "address": "192.168.2.11"}]}],
    }
    assert gateway_addresses(from_json(Status, status, "an agent")) == {ip_address("240.0.0.1"): PEER}


def test_a_file_in_the_package_is_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file adds a check: the catalogue, the doctor's output and docs/doctor.md take it from the package."""
    (tmp_path / "tide.py").write_text(
        "from mcagent.doctor.check import DoctorCheck, failed\n"
        "CHECK = DoctorCheck(name='tide', order=15, summary='the sea', causes={'High': failed('wet', 'wait')})\n"
        "def examine(node):\n"
        "    yield CHECK.finding('High', node.config.node_name)\n"
    )
    monkeypatch.setattr(node_checks, "__path__", [*node_checks.__path__, str(tmp_path)])
    entries.cache_clear()
    try:
        assert names(Scope.NODE)[:3] == ("agent", "tide", "openvswitch")
        (finding,) = (finding for finding in examine(Scope.NODE, GOOD) if finding.check == "tide")
        assert (finding.reason, finding.seen, finding.level) == ("High", "n1", FindingLevel.FAILED)
        assert "| `High` | ✗ | wet | wait |" in tables()
    finally:
        entries.cache_clear()
        sys.modules.pop("mcagent.doctor.checks.node.tide", None)
