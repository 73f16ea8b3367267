"""The guard of tunnels in the kernel: what a Node forwards and takes, as a router of others and as a victim."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network

import pytest

from devtools.nodes import netns
from mcagent.core.fragments.tunnel_guard import (
    FORGED,
    LINK,
    TO_TUNNEL,
    TO_WIREGUARD,
    TUNNEL_IN,
    TunnelPeers,
    guard,
)
from mcagent.dataplane.nft.backend import NftBackend
from mcagent.model.dataplane.resources import NftSet, Resource
from tests.attacks import tunnel_packets as packets
from tests.attacks.tunnel_packets import GENEVE
from tests.contract.inside import Inside, as_mapping, make, steps_to
from tests.worlds.guarded_node import (
    CONFIG,
    DEVICES,
    FAR,
    NODE,
    OTHER,
    PEER,
    PEERS,
    POD,
    Wires,
    udp_listener,
    wires,
)

__all__ = ["wires"]  # fixtures
pytestmark = [pytest.mark.contract, pytest.mark.datapath]

PEERS6 = TunnelPeers(
    version=6,
    addresses=(ip_network("2001:db8::1"),),
    on_link=(ip_network("2001:db8::1"),),
    own_ends=(ip_network("2001:db8::2"),),
    wireguard=((ip_address("2001:db8::1"), 51821),),
)


def test_what_the_guard_asks_for_comes_back_equal_whatever_it_has_counted(wires: Wires) -> None:
    """Both families; a new agent finds nothing to do, and counters are no drift."""
    resources: list[Resource] = guard(CONFIG, (PEERS, PEERS6), DEVICES)
    make(wires.nft, resources)
    assert not wires.arrives(wires.pod, wires.peer, POD, FAR)
    anew = Inside(wires.node, NftBackend(table="mcagent"))
    assert anew.observe() == as_mapping(resources)
    assert steps_to(anew.observe(), resources) == []
    assert wires.counted()[TO_TUNNEL] == 1
    make(wires.nft, [])
    assert "mcagent" not in netns.execute(wires.node, ["nft", "list", "tables"]).stdout
    assert wires.counted() == {}


@pytest.mark.parametrize("source", [POD, OTHER])
def test_a_pod_reaches_a_tunnel_port_only_without_the_guard(wires: Wires, source: IPv4Address) -> None:
    """With its own address, or that of a peer; other ports of the peer are as open as before."""
    assert wires.arrives(wires.pod, wires.peer, source, FAR)
    wires.guarded()
    assert not wires.arrives(wires.pod, wires.peer, source, FAR)
    assert wires.arrives(wires.pod, wires.peer, source, FAR, 53 if source == OTHER else 54)
    assert not wires.arrives(wires.pod, wires.peer, POD, FAR, 53)
    counted = wires.counted()
    assert (counted[TO_TUNNEL], counted[FORGED]) == ((1, 0) if source == POD else (0, 1))
    assert counted[TO_WIREGUARD] == 1


def test_a_router_of_other_gateways_goes_on_passing_their_tunnels(wires: Wires) -> None:
    """From a device that leads to the sender, with the destination it came with."""
    netns.ip(wires.pod, "address", "add", f"{FAR}/32", "dev", "lo")
    netns.ip(wires.peer, "address", "del", f"{FAR}/32", "dev", "lo")
    netns.ip(wires.peer, "route", "add", f"{FAR}/32", "via", str(NODE))
    netns.ip(wires.node, "route", "add", f"{FAR}/32", "via", str(POD))
    wires.guarded()
    assert wires.arrives(wires.peer, wires.pod, PEER, FAR)
    assert wires.arrives(wires.pod, wires.peer, FAR, PEER)
    stranger = IPv4Address("192.0.2.77")
    assert not wires.arrives(wires.peer, wires.pod, stranger, FAR)


def test_a_translated_destination_is_a_services_whoever_sends(wires: Wires) -> None:
    """A peer's address does not help: it may be a Pod behind another Node, and this Node would lend its own."""
    rule = f"ip daddr {NODE} udp dport 30000 dnat to {FAR}:{GENEVE}"
    table = f"table ip proxy {{\n chain pre {{ type nat hook prerouting priority -100; {rule}\n }}\n}}\n"
    netns.execute(wires.node, ["nft", "-f", "-"], stdin=table)
    netns.ip(wires.peer, "address", "del", f"{FAR}/32", "dev", "lo")
    netns.ip(wires.pod, "address", "add", f"{FAR}/32", "dev", "lo")
    netns.ip(wires.node, "route", "add", f"{FAR}/32", "via", str(POD))

    def sent() -> bool:
        token = os.urandom(8)
        with (
            netns.call(wires.pod, lambda: udp_listener(GENEVE)) as sock,
            netns.call(wires.pod, lambda: udp_listener(9)) as end,
        ):
            packets.send(wires.peer, NODE, 30000, token)
            netns.ip(wires.peer, "route", "replace", f"{FAR}/32", "via", str(NODE))
            packets.send(wires.peer, FAR, 9, b"end")
            end.settimeout(5)
            assert end.recv(64) == b"end"
            sock.setblocking(False)
            try:
                return sock.recv(64) == token
            except BlockingIOError:
                return False

    assert sent()
    wires.guarded()
    assert not sent()


def test_a_peer_may_come_by_another_uplink_than_the_way_back(wires: Wires) -> None:
    """To the address that the uplink has. To that of another device the check can be wrong: it can be off."""
    address, destination = IPv4Address("203.0.113.10"), NODE
    both_ends = replace(
        PEERS,
        addresses=(*PEERS.addresses, ip_network(address)),
        own_ends=(ip_network(NODE), ip_network(address)),
    )
    make(wires.nft, guard(CONFIG, (both_ends,), DEVICES))
    assert wires.arrives(wires.peer, wires.node, FAR, address)
    netns.ip(wires.peer, "route", "add", f"{destination}/32", "via", str(address))
    assert not wires.arrives(wires.peer, wires.node, FAR, destination)
    assert wires.counted()[FORGED] == 1
    netns.ip(
        wires.node, "route", "replace", "default", "nexthop", "via", str(PEER), "nexthop", "via", "203.0.113.1"
    )
    assert wires.arrives(wires.peer, wires.node, FAR, destination)
    netns.ip(wires.node, "route", "replace", "default", "via", str(PEER))
    make(wires.nft, guard(replace(CONFIG, tunnel_source_check=False), (both_ends,), DEVICES))
    assert wires.arrives(wires.peer, wires.node, FAR, destination)


def test_a_tunnel_ends_at_one_address_of_a_node(wires: Wires) -> None:
    """Peers reach no other address, and others not that one. Other programs have tunnels of their own."""
    other, stranger = IPv4Address("192.0.2.200"), IPv4Address("192.0.2.77")
    netns.add_address(wires.node, "uplink", f"{other}/24")
    ways = {(PEER, NODE): True, (PEER, other): False, (stranger, NODE): False, (stranger, other): True}
    assert all(wires.arrives(wires.peer, wires.node, source, to) for source, to in ways)
    wires.guarded()
    assert {way: wires.arrives(wires.peer, wires.node, *way) for way in ways} == ways
    assert wires.counted()[TUNNEL_IN] == 2


@contextlib.contextmanager
def translated(wires: Wires, hook: str, to: tuple[IPv4Address, int], new: IPv4Address) -> Iterator[None]:
    """Translate the destination of packets on the Node to the tunnel port of another address."""
    rule = f"ip daddr {to[0]} udp dport {to[1]} dnat to {new}:{GENEVE}"
    table = f"table ip proxy {{\n chain pre {{ type nat hook {hook} priority -100; {rule}\n }}\n}}\n"
    netns.execute(wires.node, ["nft", "-f", "-"], stdin=table)
    yield
    netns.execute(wires.node, ["nft", "delete", "table", "ip", "proxy"])


def test_tunnel_packets_are_not_translated(wires: Wires) -> None:
    """A Service with the address of this Node, or of another gateway, and the tunnel port diverts nothing."""
    netns.ip(wires.pod, "route", "replace", "default", "via", "10.244.1.1")
    with translated(wires, "prerouting", (NODE, GENEVE), POD):
        assert not wires.arrives(wires.peer, wires.node, PEER, NODE)
    with translated(wires, "output", (FAR, GENEVE), POD):
        assert not wires.arrives(wires.node, wires.peer, NODE, FAR)
    wires.guarded()
    netns.execute(wires.node, ["conntrack", "-F"], check=False)
    with translated(wires, "prerouting", (NODE, GENEVE), POD):
        assert wires.arrives(wires.peer, wires.node, PEER, NODE)
    with translated(wires, "output", (FAR, GENEVE), POD):
        assert wires.arrives(wires.node, wires.peer, NODE, FAR)


def test_what_was_translated_is_no_tunnel_packet(wires: Wires) -> None:
    """A NodePort that leads to the tunnel port of the Node itself, used by whoever has a peer's address."""

    def sent() -> bool:
        token = os.urandom(8)
        with netns.call(wires.node, lambda: udp_listener(GENEVE)) as sock:
            with translated(wires, "prerouting", (NODE, 30000), NODE):
                packets.send(wires.peer, NODE, 30000, token)
                assert wires.arrives(wires.peer, wires.node, PEER, NODE, 30001)
            sock.setblocking(False)
            try:
                return sock.recv(64) == token
            except BlockingIOError:
                return False

    assert sent()
    wires.guarded()
    assert not sent()
    assert wires.counted()[TUNNEL_IN] == 1


def test_a_node_of_the_link_must_send_the_largest_ttl(wires: Wires) -> None:
    """Once it has: before, it may be behind a router. Gateways of other clusters may be anywhere."""
    wires.guarded()
    assert wires.arrives(wires.peer, wires.node, PEER, NODE, ttl=64)
    assert wires.arrives(wires.peer, wires.node, PEER, NODE, ttl=255)
    assert not wires.arrives(wires.peer, wires.node, PEER, NODE, ttl=254)
    assert wires.arrives(wires.peer, wires.node, PEER, NODE, ttl=255)
    assert wires.arrives(wires.peer, wires.node, FAR, NODE, ttl=255)
    assert wires.arrives(wires.peer, wires.node, FAR, NODE, ttl=64)
    assert wires.counted()[LINK] == 1
    anew = Inside(wires.node, NftBackend(table="mcagent"))
    assert steps_to(anew.observe(), guard(CONFIG, (PEERS,), DEVICES)) == []  # what was learned is no drift


def test_a_device_that_leads_to_no_pods_is_not_asked(wires: Wires) -> None:
    """A macvlan device here; as well a network card, or Cilium's WireGuard, to which no route leads back."""
    netns.ip(wires.node, "link", "add", "link", "side", "name", "upper", "type", "macvlan")
    netns.ip(wires.node, "link", "set", "upper", "up")
    for setting in (
        "side.arp_ignore=1",
        "upper.rp_filter=0",
    ):  # only the device that has an address answers for it
        netns.execute(wires.node, ["sysctl", "-qw", f"net.ipv4.conf.{setting}"])
    netns.add_address(wires.node, "upper", "203.0.114.10/24")
    netns.add_address(wires.peer, "eth1", "203.0.114.1/24")
    netns.ip(wires.peer, "route", "add", f"{NODE}/32", "via", "203.0.114.10")
    wires.guarded()
    assert wires.arrives(wires.peer, wires.node, FAR, NODE)
    assert wires.counted()[FORGED] == 0


def test_a_forged_peer_is_caught_on_every_address_of_the_node(wires: Wires) -> None:
    """Tunnels take packets for any of them: that of a Pods' bridge, too."""
    for address in (NODE, IPv4Address("10.244.1.1"), IPv4Address("203.0.113.10")):
        assert wires.arrives(wires.pod, wires.node, OTHER, address)
    wires.guarded()
    for address in (NODE, IPv4Address("10.244.1.1"), IPv4Address("203.0.113.10")):
        assert not wires.arrives(wires.pod, wires.node, OTHER, address)
    assert wires.counted()[FORGED] == 3


@pytest.mark.parametrize(
    "spoil",
    [
        "delete element ip mcagent mct_wireguard {{ 192.0.2.1 . 51821 }}",
        "add element ip mcagent mct_wireguard {{ 192.0.2.2 . 4500 }}",
        "flush set ip mcagent mct_wireguard",
        "flush chain ip mcagent mct_forged",
    ],
)
def test_what_somebody_takes_out_of_the_guard_is_put_back(wires: Wires, spoil: str) -> None:
    """Pairs of address and port are compared like networks."""
    wires.guarded()
    netns.execute(wires.node, ["nft", "-f", "-"], stdin=spoil.format() + "\n")
    resources = guard(CONFIG, (PEERS,), DEVICES)
    assert wires.nft.observe() != as_mapping(resources)
    make(wires.nft, resources)
    assert wires.nft.observe() == as_mapping(resources)


@pytest.mark.parametrize("sockets", [(), ((PEER, 1),), tuple((FAR, port) for port in range(1, 3000))])
def test_pairs_are_replaced_as_a_whole(wires: Wires, sockets: Sequence[tuple[IPv4Address, int]]) -> None:
    """None, one, many."""
    wires.guarded()
    changed: list[Resource] = [
        NftSet(table="mcagent", name="mct_wireguard", sockets=tuple(sockets))
        if resource.key[3:] == ("mct_wireguard",)
        else resource
        for resource in guard(CONFIG, (PEERS,), DEVICES)
    ]
    make(wires.nft, changed)
    assert wires.nft.observe() == as_mapping(changed)
