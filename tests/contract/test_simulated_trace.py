"""What is simulated of a Node that cannot be asked is what its switch would say: the same page /trace."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from devtools.nodes.ovs import OvsInstance
from mcagent.api.trace import NodeTrace, TraceOutcome
from mcagent.model.config import Config, DatapathChoice
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.objects import Kind
from mcagent.trace.names import with_names
from mcagent.trace.ofproto import read
from mcagent.trace.probe import MACS, Probe
from mcagent.trace.simulator import SimulatedNode, simulate
from mcagent.trace.whatif.assumptions import facts_unseen
from tests.contract.ovs_values import DATAPATH
from tests.contract.real_switch import BRIDGE, RealSwitch
from tests.properties import REAL
from tests.worlds.core_inputs import (
    HOME,
    cluster,
    config,
    endpoint,
    endpoint_slice,
    export,
    label_identity,
    namespace,
    pod,
    policy,
    service,
    snapshot,
)

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

EAST = cluster("east", "10.97.0.0/16", "10.20.0.0/16", gateways=("203.0.113.1", "203.0.113.2"))
DENY: dict[str, object] = {
    "podSelector": {"matchLabels": {"app": "db"}},
    "policyTypes": ["Ingress"],
    "ingress": [{"ports": [{"port": 8080}]}],
}
OBJECTS = (
    *(*HOME, EAST),
    *(service("web", "10.96.0.10", 80), export("web")),
    endpoint_slice("web-1", "web", [endpoint("10.10.1.5"), endpoint("10.10.3.5")], ("", 8080)),
    *(namespace("default"), pod("db", "w1", "10.10.3.6", labels="app=db")),
    *(
        policy(Kind.NETWORK_POLICY, "deny", DENY),
        label_identity("ns:kubernetes.io/metadata.name=default&pod:app=web", 7, "east"),
    ),
)
ADDRESSES = [
    *("10.10.1.5", "10.10.2.5", "10.10.3.5", "10.10.3.6", "192.0.2.1", "192.0.2.3"),
    *("10.96.0.10", "10.96.0.11", "10.97.0.7", "10.20.0.9", "203.0.113.1", "8.8.8.8"),
]
CONFIGS = {
    "translating": config("", datapath=DatapathChoice(str(DATAPATH))),
    "with Pods and policies": config(
        "",
        datapath=DatapathChoice(str(DATAPATH)),
        enable_pod_to_pod=True,
        stretched_network_policy=True,
    ),
}


@cache
def made(on: str, settings: Config) -> SimulatedNode:
    """Return a Node of cluster "home"."""
    return simulate(snapshot(*OBJECTS), facts_unseen(settings), replace(settings, node_name=on))


@st.composite
def probes(draw: st.DrawFn, node: SimulatedNode) -> Probe:
    """Draw a packet that comes in by any port of a Node, as the way of a trace may ask for it or not."""
    source, destination = draw(st.permutations(ADDRESSES))[:2]
    return Probe(
        in_port=draw(st.sampled_from([1, *(port.ofport for port in node.tunnels.values())])),
        source=IPv4Address(source),
        destination=IPv4Address(destination),
        protocol=draw(st.sampled_from(["tcp", "udp", "icmp"])),
        source_port=draw(st.sampled_from([40000, 8080])),
        port=draw(st.sampled_from([80, 8080])),
        mac=draw(st.sampled_from(sorted(MACS))),
        service=draw(st.sampled_from([0, *node.desired.state.service_ids.values()])),
        identity=draw(st.sampled_from([0, 7, 0xFFFFFF])),
    )


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("on", ["g1", "w1"])
@REAL
@given(data=st.data())
def test_simulated_pages_are_those_of_the_switch(
    ovs: OvsInstance, on: str, settings: Config, data: st.DataObject
) -> None:
    """First packets and answers, with what conntrack keeps: every field but the words of the rule."""
    node = made(on, settings)
    switch = RealSwitch.create(ovs, {1, *(port.ofport for port in node.tunnels.values())})
    switch.load(node.switch.flows, node.switch.groups.values())

    def both(probe: Probe) -> NodeTrace:
        flow, *states = probe.arguments()
        trace = read(ovs.appctl("ofproto/trace", *states, BRIDGE, flow), BRIDGE, probe)
        trace = with_names(trace, probe, node.desired, node.config)
        assert comparable(node.trace(probe), probe) == comparable(trace, probe), probe
        return trace

    try:
        for _ in range(40):
            probe = data.draw(probes(node))
            commits = both(probe).committed
            mark, label = (commits[-1].mark, commits[-1].label) if commits else (0, 0)
            both(replace(data.draw(probes(node)), reply=True, mark=mark, label=label))
    finally:
        switch.close()


def comparable(trace: NodeTrace, probe: Probe) -> NodeTrace:
    """Return what decides on the way: the words of a rule are the switch's own, and a kernel looks at no MAC.

    What is committed counts for first packets: a real conntrack would not take all answers that are made up here.
    Which port of a range conntrack gives is not known to either, nor which gateway follows from it; ICMP has none.
    The kernel's conntrack may translate a gateway's own packet to the same address and another port.
    """
    if probe.protocol == "icmp":
        trace = structs.replace(trace, source_port=0, port=0)
    to_itself = DATAPATH is DatapathType.SYSTEM and "SnatState" in trace.tables
    if (trace.source != str(probe.source) or to_itself) and not probe.reply:
        trace = structs.replace(trace, source_port=0, out_port=0)
    committed = () if probe.reply else trace.committed
    mac = trace.mac if trace.outcome == TraceOutcome.TUNNEL else ""
    return structs.replace(trace, rule="", mac=mac, committed=committed)
