"""Fragmented datagrams and policies about ports, in a real Open vSwitch: all passes, or the head does not.

The kernel's conntrack passes reassembled datagrams on, that of the userspace datapath their fragments.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from itertools import count

import pytest

from devtools.nodes.ovs import OvsInstance
from flows.fields import IP_UDP
from flows.pipeline import (
    PodPolicies,
    PolicyDirection,
    PolicyPeers,
    PolicyPort,
    PolicyRule,
    PolicyStage,
    PolicyVerdict,
)
from flows.simulator import Datapath
from tests.attacks import packets, tunnel_packets
from tests.contract.real_switch import BRIDGE, TRACKING, RealSwitch
from tests.worlds import policy_switch
from tests.worlds.policies import CLUSTERS, PODS, Policies
from tests.worlds.policy_switch import EXITS, flows_of

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

ISOLATED, OPEN = PODS[0], PODS[1]
CLIENT = IPv4Address("10.2.1.1")
PORT, OTHER_PORT = 8080, 8081
LARGE, SMALL = 1400, 800  # bytes of a fragment; the userspace datapath reassembles none below 1200 (lib/ipf.c)
MORE_FRAGMENTS = 0x2000
DATAGRAM = 2900  # bytes, with its UDP header
IDENTS = count(1)  # IP identifications
ALLOWED = next(port for port, verdict in EXITS.items() if verdict is PolicyVerdict.ALLOW)
USERSPACE = TRACKING is Datapath.USERSPACE


def rule(number: int, direction: PolicyDirection, verdict: PolicyVerdict, pod: IPv4Address) -> PolicyRule:
    """Return a rule about requests to one UDP port."""
    stage = PolicyStage.NETWORK_POLICY if verdict is PolicyVerdict.ALLOW else PolicyStage.TIERS
    return PolicyRule(
        id=number,
        direction=direction,
        stage=stage,
        level=0,
        verdict=verdict,
        pods=(pod,),
        peers=PolicyPeers(any_peer=True),
        ports=(PolicyPort(protocol=IP_UDP, low=PORT, high=PORT),),
    )


POLICIES = Policies(
    rules=tuple(
        rule(10 * place + number, direction, verdict, pod)
        for place, direction in enumerate(PolicyDirection)
        for number, (verdict, pod) in enumerate(((PolicyVerdict.ALLOW, ISOLATED), (PolicyVerdict.DROP, OPEN)), 1)
    ),
    pods=PodPolicies(isolated_ingress=(ISOLATED,), isolated_egress=(ISOLATED,)),
)


@pytest.fixture(scope="module")
def switch(ovs: OvsInstance) -> Iterator[RealSwitch]:
    """Give a bridge with the policies' tables."""
    switch = RealSwitch.create(ovs, policy_switch.PORTS)
    try:
        switch.load(flows_of(POLICIES), ())
        yield switch
    finally:
        switch.close()


def fragments(source: IPv4Address, destination: IPv4Address, port: int, size: int) -> list[bytes]:
    """Return the packets of a datagram of 2,900 bytes, each with at most `size` bytes of it."""
    whole = tunnel_packets.udp(source, destination, port, bytes(2892))
    offsets = range(0, len(whole), size)
    ident = next(IDENTS)  # a switch keeps fragments that it could not reassemble for 15 s
    return [
        tunnel_packets.ipv4(
            source,
            destination,
            whole[at : at + size],
            ident=ident,
            fragment=at // 8 | (MORE_FRAGMENTS if at != offsets[-1] else 0),
        )
        for at in offsets
    ]


def arrived(switch: RealSwitch, direction: PolicyDirection, pod: IPv4Address, port: int, size: int = LARGE) -> int:
    """Send a large datagram; return the bytes of it that pass, if its head does, else 0."""
    outwards = direction is PolicyDirection.EGRESS
    source, destination = (pod, CLIENT) if outwards else (CLIENT, pod)
    allowed = PORT if pod == ISOLATED else OTHER_PORT
    last = tunnel_packets.udp(source, destination, allowed, b"an allowed datagram")
    frames = [
        packets.ethernet("02:00:00:00:00:01", "02:00:00:00:00:02", packet)
        for packet in (
            *fragments(source, destination, port, size),
            tunnel_packets.ipv4(source, destination, last, ident=next(IDENTS)),
        )
    ]
    received = switch.forward(1 if outwards else 10 + CLUSTERS[0], frames)
    assert {number for number, _ in received} <= {ALLOWED}
    pieces = [frame[14:] for _, frame in received]
    if not any(int.from_bytes(piece[6:8]) & 0x1FFF == 0 for piece in pieces):
        return 0
    return sum(len(piece) - 20 for piece in pieces)


@pytest.mark.parametrize("direction", PolicyDirection)
def test_the_port_of_a_datagram_decides_its_fragments(switch: RealSwitch, direction: PolicyDirection) -> None:
    """What is allowed passes whole; what is dropped, or not allowed, has no head."""
    assert arrived(switch, direction, ISOLATED, PORT) == DATAGRAM
    assert arrived(switch, direction, ISOLATED, OTHER_PORT) == 0
    assert arrived(switch, direction, OPEN, PORT) == 0
    assert arrived(switch, direction, OPEN, OTHER_PORT) == DATAGRAM


@pytest.mark.parametrize("direction", PolicyDirection)
def test_fragments_that_conntrack_does_not_reassemble(switch: RealSwitch, direction: PolicyDirection) -> None:
    """None passes a policy on the userspace datapath; the kernel reassembles all sizes."""
    whole = 0 if USERSPACE else DATAGRAM
    assert arrived(switch, direction, ISOLATED, PORT, SMALL) == whole
    assert arrived(switch, direction, OPEN, PORT, SMALL) == 0
    assert arrived(switch, direction, OPEN, OTHER_PORT, SMALL) == whole


@pytest.mark.parametrize("direction", PolicyDirection)
def test_fragments_whose_ports_are_hidden(switch: RealSwitch, direction: PolicyDirection) -> None:
    """In the mode of a new bridge nothing passes a rule that drops a port, for want of a port."""
    switch.ovs.ofctl("set-frags", switch.ovs.mgmt(BRIDGE), "normal")
    try:
        assert arrived(switch, direction, OPEN, PORT) == 0
    finally:
        switch.ovs.ofctl("set-frags", switch.ovs.mgmt(BRIDGE), "nx-match")
