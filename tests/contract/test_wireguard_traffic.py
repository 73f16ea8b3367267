"""The WireGuard backend under traffic: rotation of keys, roaming, and a peer that starts anew."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devtools.nodes import netns
from devtools.traffic.capture import ETH_P_IP, ETH_P_IPV6, ETHERNET_HEADER, Capture
from devtools.waiting import wait_until
from mcagent.core.fragments import kernel
from mcagent.dataplane.wireguard.watch import WireGuardWatch
from mcagent.model.config import Config, EncryptionFallback, TrafficEncryption
from mcagent.model.dataplane.wireguard import WireGuardImplementation, WireGuardPeerStatus
from mcagent.model.net import parse_address
from mcagent.model.node_state import EncryptionState, RemoteEnd
from mcagent.observe.wireguard import EncryptionPeer, causes
from tests.contract.wireguard_nodes import PORT, Ping, WireGuardNode, meet, missing, route, two_nodes
from tests.waiting import allowed

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

PINGS = 600
INTERVAL = 0.005  # seconds


@pytest.fixture(params=list(WireGuardImplementation), scope="module")
def implementation(request: pytest.FixtureRequest) -> WireGuardImplementation:
    """Give each implementation that there is here."""
    reason = missing(request.param)
    if request.param is WireGuardImplementation.USERSPACE and not missing(WireGuardImplementation.KERNEL):
        reason = "wireguard-go is for kernels without WireGuard; in a test kernel with one CPU it loses packets"
    if reason:
        pytest.skip(reason)
    return WireGuardImplementation(request.param)


Pair = tuple[WireGuardNode, WireGuardNode]


@pytest.fixture
def pair(tmp_path: Path, implementation: WireGuardImplementation) -> Iterator[Pair]:
    """Give two Nodes that are each other's peer and reach each other through their devices."""
    with _paired(tmp_path, implementation, "192.0.2.") as pair:
        yield pair


@contextmanager
def _paired(directory_of_both: Path, implementation: WireGuardImplementation, underlay: str) -> Iterator[Pair]:
    with two_nodes(directory_of_both, implementation, underlay=underlay) as (one, two):
        meet(one, two)
        yield one, two


@pytest.mark.timing
@pytest.mark.parametrize(("underlay", "overhead"), [("192.0.2.", 60), ("2001:db8::", 80)], ids=["ipv4", "ipv6"])
def test_the_largest_packet_fills_the_underlay(
    tmp_path: Path, implementation: WireGuardImplementation, underlay: str, overhead: int
) -> None:
    """What the device takes leaves as one packet of the underlay's MTU; one byte more is refused, not cut."""
    ethertype = ETH_P_IP if overhead == 60 else ETH_P_IPV6
    with _paired(tmp_path, implementation, underlay) as (one, two):
        mtu = kernel.wireguard_mtu(1500, Config(node_name="one"), one.underlay.version)
        assert mtu == 1500 - overhead
        for node, other in ((one, two), (two, one)):
            node.make(other.peer_for(node), mtu=mtu)
        with Capture(two.namespace, "uplink", ethertype=ethertype) as capture:
            assert _ping(one, two, mtu) == 0
            frames = [frame[ETHERNET_HEADER:] for frame in capture.frames()]
        largest = max(frames, key=len)
        assert len(largest) == 1500
        if overhead == 60:
            assert int.from_bytes(largest[6:8]) & 0x3FFF == 0  # neither more fragments nor an offset
        else:
            assert largest[6] == socket.IPPROTO_UDP  # no fragment header (RFC 8200)
        assert _ping(one, two, mtu + 1) != 0


def _ping(node: WireGuardNode, two: WireGuardNode, size: int) -> int:
    """Send packets of `size` bytes, "don't fragment" set; return ping's status."""
    argv = [
        "ping",
        "-n",
        "-q",
        "-c",
        "3",
        "-i",
        "0.2",
        "-W",
        "2",
        "-M",
        "do",
        "-s",
        str(size - 28),
        str(two.inner),
    ]
    return netns.execute(node.namespace, argv, check=False).returncode


def status(node: WireGuardNode, public_key: str) -> WireGuardPeerStatus | None:
    """Return what a Node's device says of a peer."""
    statuses = netns.call(node.namespace, node.wireguard.statuses)
    return next((status for status in statuses if status.public_key == public_key), None)


def shaken(node: WireGuardNode, public_key: str) -> bool:
    """Tell whether the peer has shaken hands with the Node under that key."""
    found = status(node, public_key)
    return found is not None and found.last_handshake > 0


def announce(node: WireGuardNode, other: WireGuardNode) -> str:
    """Make the Node's next key and let the other one know; return it."""
    node.store.prepare_next()
    announced = node.peer_for(other)
    other.make(announced, *())
    return announced.successor


def switch(node: WireGuardNode, other: WireGuardNode) -> None:
    """Use the next key from now on; the peers stay what they are."""
    node.store.promote_next()
    node.make(other.peer_for(node))


def start_pings(one: WireGuardNode, two: WireGuardNode) -> list[Ping]:
    """Begin to ping in both directions."""
    return [node.start_ping(other, count=PINGS, interval=INTERVAL) for node, other in ((one, two), (two, one))]


def publish(node: WireGuardNode, other: WireGuardNode) -> None:
    """Let the other one know that the next key is the current one."""
    node.make(other.peer_for(node))  # what the Node itself has stays
    other.make(node.peer_for(other))


@pytest.mark.timing
def test_rotation_of_one_key_costs_a_moment_one_way(pair: tuple[WireGuardNode, WireGuardNode]) -> None:
    """Announced, used, published; nothing is left of the old key.

    What the Node with the new key sends is lost until its peer has looked, some 0.05 s later.
    """
    one, two = pair
    before = two.store.ensure().current.public
    with watching(one):
        pings = start_pings(one, two)
        new = announce(two, one)
        time.sleep(0.3)
        assert not shaken(one, new)
        switch(two, one)
        wait_until(lambda: shaken(one, new), "handshake of the new key")
        wait_until(lambda: status(one, before) is None, "the end of the old key")
        assert not netns.call(one.namespace, one.wireguard.differs)
        time.sleep(0.3)
        publish(two, one)
        assert not one.wireguard.awaits_keys
        assert all(ping.running() for ping in pings), "the pings have to last longer than the rotation"
        lost_counts = [ping.lost() for ping in pings]
        assert max(lost_counts) * INTERVAL < 0.3
        assert [peer.public_key for peer in netns.call(one.namespace, one.wireguard.statuses)] == [new]


@contextmanager
def watching(node: WireGuardNode) -> Iterator[None]:
    """Look after peers that have announced a key, as the agent does."""
    watch = WireGuardWatch(node.wireguard, lambda: None)
    netns.call(node.namespace, watch.start)
    try:
        yield
    finally:
        watch.stop()


@pytest.mark.timing
def test_an_idle_peer_learns_of_the_new_key_at_once(pair: tuple[WireGuardNode, WireGuardNode]) -> None:
    """Without traffic, too, the Node with the new key shakes hands."""
    one, two = pair
    with watching(one):
        new = announce(two, one)
        switch(two, one)
        wait_until(lambda: status(one, new) is not None and shaken(one, new), "handshake", timeout=1.0)


@pytest.mark.timing
def test_an_announcement_taken_back_leaves_the_present_key(pair: tuple[WireGuardNode, WireGuardNode]) -> None:
    """Nothing happens on the wire, and the key that was announced is nobody's."""
    node, two = pair
    ping = node.start_ping(two, count=300, interval=INTERVAL)
    new = announce(two, node)
    two.store.drop_next()
    node.make(two.peer_for(node))
    assert ping.lost() == 0
    assert status(node, new) is None


@pytest.mark.timing
def test_a_change_of_one_peer_leaves_the_session_of_another(pair: tuple[WireGuardNode, WireGuardNode]) -> None:
    """Peers that come, change and go next to it cost a peer neither a packet nor its session."""
    one, two = pair
    ping = one.start_ping(two, count=600, interval=INTERVAL)
    peer_for = two.peer_for(one)
    shaken = status(one, peer_for.public_key)
    assert shaken is not None
    from tests.contract.wireguard_nodes import peer

    for resources in ([peer(one, 0), peer(one, 1)], [peer(one, 0, keepalive=9)], [], [peer(one, 2)]):
        one.make(peer_for, *resources)
    after = status(one, peer_for.public_key)
    assert after is not None
    assert after.last_handshake == shaken.last_handshake
    assert ping.lost() == 0


@pytest.mark.timing
def test_a_peer_that_roams_is_followed_and_no_difference(pair: tuple[WireGuardNode, WireGuardNode]) -> None:
    """It sends from another port: its endpoint in the status is that, and nothing is to be repaired."""
    one, two = pair
    two.make(one.peer_for(two), listen_port=PORT + 7)
    key = two.store.ensure().current.public
    two.start_ping(one, count=2).lost()
    wait_until(
        lambda: (peer_status := status(one, key)) is not None and peer_status.endpoint == (two.underlay, PORT + 7),
        "roaming",
    )
    assert not netns.call(one.namespace, one.wireguard.differs)
    one.make(two.peer_for(one))
    peer_status = status(one, key)
    assert peer_status is not None
    assert peer_status.endpoint == (two.underlay, PORT + 7)
    assert one.start_ping(two, count=100, interval=INTERVAL).lost() == 0


@pytest.mark.timing
def test_an_underlay_address_that_changes_costs_no_more_than_a_moment(
    pair: tuple[WireGuardNode, WireGuardNode],
) -> None:
    """The Node's address changes: after `rebind` packets pass."""
    one, two = pair
    netns.ip(two.namespace, "address", "del", f"{two.underlay}/24", "dev", "uplink")
    netns.ip(two.namespace, "address", "add", "192.0.2.99/24", "dev", "uplink")
    netns.call(two.namespace, two.wireguard.rebind)
    wait_until(lambda: two.start_ping(one, count=1).lost() == 0, "an answer to the new address", timeout=3.0)
    assert two.start_ping(one, count=50, interval=INTERVAL).lost() == 0
    peer_status = status(one, two.store.ensure().current.public)
    assert peer_status is not None
    assert peer_status.endpoint == (parse_address("192.0.2.99"), PORT)


@pytest.mark.timing
def test_wireguard_go_that_dies_is_started_anew(pair: tuple[WireGuardNode, WireGuardNode]) -> None:
    """Device, address and route stay; one repair later, in under a second, packets pass again."""
    one, two = pair
    if two.implementation is not WireGuardImplementation.USERSPACE:
        pytest.skip("the kernel's WireGuard does not die")
    process = netns.call(two.namespace, two.wireguard.process)
    assert process is not None
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: netns.call(two.namespace, two.wireguard.differs), "noticed")
    assert two.device in netns.ip(two.namespace, "route", "show")
    began = time.monotonic()
    two.make(one.peer_for(two))
    wait_until(lambda: one.start_ping(two, count=1).lost() == 0, "answer")
    assert time.monotonic() - began < allowed(3.0)
    assert two.wireguard.restarts == 1
    assert netns.call(two.namespace, two.wireguard.process) not in {None, process}


@pytest.mark.timing
def test_a_device_made_anew_has_the_same_key(pair: tuple[WireGuardNode, WireGuardNode]) -> None:
    """Somebody removes the device: it comes back with the identity that peers know, and shakes hands by itself."""
    one, two = pair
    netns.ip(two.namespace, "link", "delete", two.device)
    two.make(one.peer_for(two))
    route(two, one)
    wait_until(lambda: one.start_ping(two, count=1).lost() == 0, "answer")


def causes_given(node: WireGuardNode, other: WireGuardNode) -> str:
    """Return the likely causes that a Node's people are told about the other one."""
    key = other.store.ensure().current.public
    end = RemoteEnd(gateway=other.underlay, address=other.inner, public_key=key, port=PORT)
    encryption_state = EncryptionState(
        mode=TrafficEncryption.WIREGUARD,
        fallback=EncryptionFallback.DENY,
        implementation=node.implementation,
        public_key=node.store.ensure().current.public,
        next_public_key="",
        devices=(node.device,),
        ends={"other": (end,)},
        publication=None,
        own_gateway=node.underlay,
        problems=(),
    )
    return "; ".join(
        causes(encryption_state, EncryptionPeer(end=end), status(node, key), key_created=0.0, now=time.time())
    )


@pytest.mark.timing
def test_counters_tell_which_way_is_closed(pair: tuple[WireGuardNode, WireGuardNode]) -> None:
    """Who hears handshakes but is not heard knows it; the other one only knows that nothing comes back."""
    one, two = pair
    rule = (
        f"add table ip shut; add chain ip shut c {{ type filter hook input priority 0; udp dport {PORT} drop; }}"
    )
    netns.execute(two.namespace, ["nft", rule])
    for node in pair:
        node.make()
    for node, other in ((one, two), (two, one)):
        node.make(other.peer_for(node))
    keys = one.store.ensure().current.public, two.store.ensure().current.public
    wait_until(
        lambda: (peer_status := status(one, keys[1])) is not None and peer_status.received > 0,
        "a handshake of the other's",
    )
    assert "its handshakes arrive here, our answers do not get there" in causes_given(one, two)
    peer_status = status(two, keys[0])
    assert peer_status is not None
    assert (peer_status.received, peer_status.last_handshake) == (0, 0.0)
    assert f"UDP port {PORT} of {one.underlay}, or UDP port {PORT} of this Node" in causes_given(two, one)
