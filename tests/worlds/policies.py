"""Random rules of policies and packets, and what a naive reader of the rules does with a packet.

Knows the values that the pipeline is built from, and nothing of how it is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from random import Random
from typing import TypeVar

from flows.fields import IP_ICMP, IP_SCTP, IP_TCP, IP_UDP
from flows.pipeline import (
    PodPolicies,
    PolicyDirection,
    PolicyPeers,
    PolicyPort,
    PolicyRule,
    PolicyStage,
    PolicyVerdict,
)
from flows.simulator import Packet
from flows.simulator.packet import ECHO_REQUEST, SYN
from flows.text import mac_text

T = TypeVar("T")
UNKNOWN = 0xFFFFFF
PODS = tuple(IPv4Address(f"10.1.0.{number}") for number in range(1, 5))
OTHERS = tuple(IPv4Address(f"10.2.{number}.{number}") for number in range(1, 5))
NETWORKS = tuple(IPv4Network(text) for text in ("10.2.0.0/16", "10.2.1.0/24", "10.2.2.2/32", "10.2.0.0/22"))
CLUSTERS, IDENTITIES = (1, 2), (7, 8, UNKNOWN)
PORTS = (79, 80, 81, 443, 1024)
STAGES = (PolicyStage.TIERS, PolicyStage.NETWORK_POLICY, PolicyStage.BASELINE)


@dataclass(frozen=True, kw_only=True)
class Policies:
    """All rules of one Node."""

    rules: tuple[PolicyRule, ...]
    pods: PodPolicies


def policies(random: Random) -> Policies:
    """Return random rules of both directions."""
    levels = [
        (direction, stage, number) for direction in PolicyDirection for stage in PolicyStage for number in range(3)
    ]
    verdicts = {level: random.choice(list(PolicyVerdict)) for level in levels}
    rules = []
    for number in range(1, random.randint(1, 14)):
        direction, stage = random.choice(list(PolicyDirection)), random.choice(STAGES)
        level = 0 if stage is PolicyStage.NETWORK_POLICY else random.randint(0, 2)
        verdict = PolicyVerdict.ALLOW if stage is PolicyStage.NETWORK_POLICY else verdicts[direction, stage, level]
        if stage is PolicyStage.BASELINE and verdict is PolicyVerdict.PASS:  # there is none
            continue
        rules.append(
            PolicyRule(
                id=number,
                direction=direction,
                stage=stage,
                level=level,
                verdict=verdict,
                pods=_some(random, PODS),
                peers=_peers(random, direction),
                ports=tuple(_port(random) for _ in range(random.choice((0, 0, 1, 2)))),
            )
        )
    isolated = [_some(random, PODS) for _ in range(3)]
    return Policies(
        rules=tuple(rules),
        pods=PodPolicies(isolated_ingress=isolated[0], isolated_egress=isolated[1], unknown_dropped=isolated[2]),
    )


def _some(random: Random, values: Sequence[T]) -> tuple[T, ...]:
    return tuple(random.sample(values, random.randint(0, len(values))))


def _peers(random: Random, direction: PolicyDirection) -> PolicyPeers:
    if random.random() < 0.2:
        return PolicyPeers(any_peer=True)
    networks = _some(random, NETWORKS[1:3] if random.random() < 0.5 else ())
    if direction is PolicyDirection.EGRESS:
        ends = ((cidr, protocol, port) for cidr in OTHERS for protocol in (IP_TCP, IP_UDP) for port in PORTS[:2])
        return PolicyPeers(networks=networks, services=_some(random, tuple(ends)))
    pairs = tuple((cluster, identity) for cluster in (0, *CLUSTERS) for identity in IDENTITIES)
    return PolicyPeers(
        networks=networks,
        identities=_some(random, pairs) if random.random() < 0.7 else (),
        clusters=_some(random, CLUSTERS) if random.random() < 0.1 else (),
    )


def _port(random: Random) -> PolicyPort:
    protocol = random.choice((IP_TCP, IP_TCP, IP_UDP, IP_SCTP, IP_ICMP))
    if protocol == IP_ICMP:
        return PolicyPort(protocol=protocol, icmp_type=random.choice((None, ECHO_REQUEST, 3)))
    low = random.choice((0, 79, 80, 443))
    return PolicyPort(protocol=protocol, low=low, high=random.choice((low, low, 1023, 65535)))


def request(random: Random, direction: PolicyDirection) -> Packet:
    """Return the first packet of a connection, of a Pod (port 1) or another cluster (port 10 and its ID)."""
    own_pod, other_pod = random.choice(PODS), random.choice(OTHERS)
    outwards = direction is PolicyDirection.EGRESS
    protocol = random.choice((IP_TCP, IP_TCP, IP_UDP, IP_ICMP))
    identity = random.choice(IDENTITIES)
    return Packet(
        in_port=1 if outwards else 10 + random.choice(CLUSTERS),
        src=own_pod if outwards else other_pod,
        dst=other_pod if outwards else own_pod,
        proto=protocol,
        src_port=4000,
        dst_port=0 if protocol == IP_ICMP else random.choice(PORTS),
        tcp_flags=SYN,
        icmp_type=ECHO_REQUEST if protocol == IP_ICMP else 0,
        tun_id=identity,
        eth_src=mac_text(0x0200 << 32 | identity),  # what can be sent by hand has no tunnel
    )


def verdict_of(policies: Policies, packet: Packet, direction: PolicyDirection) -> PolicyVerdict:
    """Return what the rules say of a request, read one by one."""
    pod, peer = (packet.src, packet.dst) if direction is PolicyDirection.EGRESS else (packet.dst, packet.src)
    isolated = (
        policies.pods.isolated_egress if direction is PolicyDirection.EGRESS else policies.pods.isolated_ingress
    )
    for stage in STAGES:
        rules = [rule for rule in policies.rules if rule.direction is direction and rule.stage is stage]
        for rule in sorted(rules, key=lambda rule: rule.level):
            if pod not in rule.pods or not _is_peer(rule.peers, packet, peer) or not _is_port(rule.ports, packet):
                continue
            if rule.verdict is not PolicyVerdict.PASS:
                return rule.verdict
            break
        if stage is PolicyStage.NETWORK_POLICY and pod in isolated:
            return PolicyVerdict.DROP
    if direction is PolicyDirection.INGRESS and pod in policies.pods.unknown_dropped and packet.tun_id == UNKNOWN:
        return PolicyVerdict.DROP
    return PolicyVerdict.ALLOW


def _is_peer(peers: PolicyPeers, packet: Packet, peer: object) -> bool:
    cluster = packet.in_port - 10
    return (
        peers.any_peer
        or cluster in peers.clusters
        or any(number in (0, cluster) and identity == packet.tun_id for number, identity in peers.identities)
        or any(peer in network for network in peers.networks)
        or (peer, packet.proto, packet.dst_port) in peers.services
    )


def _is_port(ports: Sequence[PolicyPort], packet: Packet) -> bool:
    return not ports or any(
        port.protocol == packet.proto
        and port.low <= packet.dst_port <= port.high
        and port.icmp_type in (None, packet.icmp_type)
        for port in ports
    )
