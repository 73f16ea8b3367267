"""What is asked of a device so that its peers are right, on a device in memory."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.generic.wireguard import wgmsg

from mcagent.dataplane.wireguard import kernel, uapi
from mcagent.dataplane.wireguard.driver import DeviceChange, PeerChange, RawDevice, RawPeer
from mcagent.dataplane.wireguard.peers import (
    SESSION,
    change_peers,
    handovers,
    key_in_use,
    observed_peers,
    peer_changes,
)
from mcagent.model.dataplane.wireguard import WireGuardImplementation, WireGuardPeer
from mcagent.model.errors import BackendError
from mcagent.model.net import network_key, parse_address, parse_network
from mcagent.model.plan import Step

DEVICE = "mc-wg0"
NOW = 1_000_000.0
KEYS = [base64.b64encode(bytes([number]) * 32).decode() for number in range(8)]
NETWORKS = tuple(parse_network(text)[0] for text in ("10.1.0.0/32", "10.2.0.0/32", "10.3.0.0/16", "fd00::/64"))
ENDPOINTS = [(parse_address(f"192.0.2.{number}"), 51821) for number in range(1, 4)]


class Memory:
    """A device that does what a driver is asked, as WireGuard would."""

    implementation = WireGuardImplementation.KERNEL
    kind = "wireguard"

    def __init__(self) -> None:
        self.peers: dict[str, RawPeer] = {}
        self.written: list[PeerChange] = []

    def available(self) -> bool:
        return True

    def create(self) -> None:
        raise AssertionError

    def read(self) -> RawDevice:
        return RawDevice(public_key=KEYS[7], listen_port=1, fwmark=0, peers=dict(self.peers))

    def remove(self) -> None:
        raise AssertionError

    def write(self, change: DeviceChange) -> None:
        for peer in change.peers:
            self.written.append(peer)
            self._one(peer)

    def _one(self, change: PeerChange) -> None:
        key = change.public_key
        if change.remove:
            self.peers.pop(key, None)
            return
        peer = self.peers.get(key, RawPeer(public_key=key))
        networks = set() if change.replace_allowed_ips else set(peer.allowed_ips)
        for network in change.allowed_ips:
            for other, held_peer in self.peers.items():  # a network is one peer's
                self.peers[other] = replace(
                    held_peer, allowed_ips=tuple(n for n in held_peer.allowed_ips if n != network)
                )
            networks.add(network)
        self.peers[key] = replace(
            peer,
            endpoint=change.endpoint or peer.endpoint,
            keepalive=peer.keepalive if change.keepalive is None else change.keepalive,
            allowed_ips=tuple(sorted(networks, key=network_key)),
        )

    def shake_hands(self, key: str, now: float = NOW, endpoint: tuple[object, int] | None = None) -> None:
        """Note a handshake, from where it came."""
        peer = self.peers[key]
        self.peers[key] = replace(peer, last_handshake=now, endpoint=endpoint or peer.endpoint)  # type: ignore[arg-type]


def peer(number: int, **fields: object) -> WireGuardPeer:
    """Return a peer."""
    peer = WireGuardPeer(
        device=DEVICE,
        public_key=KEYS[number],
        endpoint=ENDPOINTS[0],
        allowed_ips=(NETWORKS[number],),
        keepalive=5,
    )
    return replace(peer, **fields)  # type: ignore[arg-type]


def steps(before: Sequence[WireGuardPeer], after: Sequence[WireGuardPeer]) -> list[Step]:
    """Return what core.diff says, adds and changes first."""
    old, new = ({one.public_key: one for one in peers} for peers in (before, after))
    steps = []
    for key, one in new.items():
        if old.get(key) != one:
            steps.append(Step(old=old.get(key), new=one))
    gone = [one for key, one in old.items() if key not in new]
    return steps + [Step(old=o) for o in gone]


Applied = dict[str, WireGuardPeer]


def bring(device: Memory, applied: Applied, peers: Sequence[WireGuardPeer]) -> Applied:
    """Observe and apply, as the loop does; every step has to succeed."""
    observed = observed_peers(DEVICE, device.peers, applied, NOW)
    applied, failed = change(device, applied, steps(observed, peers))
    assert not failed, [str(error) for error in failed.values()]
    return applied


def change(device: Memory, applied: Applied, steps: Sequence[Step]) -> tuple[Applied, dict[int, BackendError]]:
    """Make the steps so on a device that is as it is."""
    return change_peers(device, device.read(), applied, dict(enumerate(steps)))


peers_of = st.lists(
    st.builds(
        peer,
        st.integers(0, 3),
        endpoint=st.sampled_from(ENDPOINTS),
        keepalive=st.sampled_from([0, 5, 25]),
    ),
    unique_by=lambda one: one.public_key,
    max_size=4,
)


@given(st.lists(peers_of, min_size=1, max_size=4))
def test_from_any_peers_to_any_others(sets: list[list[WireGuardPeer]]) -> None:
    """What was asked for is what is observed, and asking again writes nothing."""
    device = Memory()
    applied: dict[str, WireGuardPeer] = {}
    for peers in sets:
        applied = bring(device, applied, peers)
        assert set(observed_peers(DEVICE, device.peers, applied, NOW)) == set(peers)
        device.written.clear()
        change(device, applied, steps([], peers))
        assert device.written == []


def test_a_network_that_moves_between_peers_is_never_nobodys() -> None:
    """It is added to the one before the other is touched."""
    device = Memory()
    applied = bring(device, {}, [peer(0)])
    device.written.clear()
    bring(device, applied, [peer(1, allowed_ips=(NETWORKS[0],))])
    assert [(change.public_key, change.remove) for change in device.written] == [(KEYS[1], False), (KEYS[0], True)]


def test_only_what_is_missing_of_a_peer_is_written() -> None:
    """A network more does not take away those that are there."""
    device = Memory()
    applied = bring(device, {}, [peer(0)])
    device.written.clear()
    bring(device, applied, [peer(0, allowed_ips=(NETWORKS[0], NETWORKS[2]))])
    assert device.written == [PeerChange(public_key=KEYS[0], allowed_ips=(NETWORKS[2],))]


# --- endpoints ------------------------------------------------------------------------------------------


def test_a_peer_that_roamed_is_as_it_was_asked_for() -> None:
    """Its session vouches for the endpoint; once that is over, the configured one is tried again."""
    device = Memory()
    applied = bring(device, {}, [peer(0)])
    device.shake_hands(KEYS[0], endpoint=ENDPOINTS[2])
    assert observed_peers(DEVICE, device.peers, applied, NOW + 1) == [peer(0)]
    late = observed_peers(DEVICE, device.peers, applied, NOW + SESSION)
    assert late == [peer(0, endpoint=ENDPOINTS[2])]
    assert peer_changes(peer(0), peer(0), device.peers, NOW + SESSION, {KEYS[0]}) == [
        PeerChange(public_key=KEYS[0], endpoint=ENDPOINTS[0])
    ]


def test_an_endpoint_that_is_configured_anew_is_written_at_once() -> None:
    """Also while the session lives."""
    device = Memory()
    applied = bring(device, {}, [peer(0)])
    device.shake_hands(KEYS[0])
    bring(device, applied, [peer(0, endpoint=ENDPOINTS[1])])
    assert device.peers[KEYS[0]].endpoint == ENDPOINTS[1]


# --- keys to come ---------------------------------------------------------------------------------------

OLD, ANNOUNCED, NEW = peer(0), peer(0, successor=KEYS[1]), peer(1, allowed_ips=(NETWORKS[0],))


def test_an_announced_key_is_there_without_networks() -> None:
    """So its first handshake is answered; the peer itself is not touched."""
    device = Memory()
    applied = bring(device, {}, [OLD])
    before = dict(device.peers)
    applied = bring(device, applied, [ANNOUNCED])
    assert device.peers == {**before, KEYS[1]: RawPeer(public_key=KEYS[1])}
    assert observed_peers(DEVICE, device.peers, applied, NOW) == [ANNOUNCED]
    assert handovers(applied, device.peers) == []


def test_an_announced_key_that_somebody_removes_comes_back() -> None:
    """Without it the first handshake would not be answered."""
    device = Memory()
    applied = bring(device, {}, [ANNOUNCED])
    del device.peers[KEYS[1]]
    assert observed_peers(DEVICE, device.peers, applied, NOW) != [ANNOUNCED]
    bring(device, applied, [ANNOUNCED])
    assert KEYS[1] in device.peers


def handed_over() -> tuple[Memory, dict[str, WireGuardPeer]]:
    """Return a device after the peer began to use the key it had announced."""
    device = Memory()
    applied = bring(device, {}, [ANNOUNCED])
    device.shake_hands(KEYS[1], endpoint=ENDPOINTS[0])
    for keys in ({KEYS[0], KEYS[1]}, {KEYS[1]}):  # the old key stays for a moment, and is no difference meanwhile
        device.write(DeviceChange(peers=handovers(applied, device.peers)))
        assert set(device.peers) == keys
        assert device.peers[KEYS[1]].allowed_ips == ANNOUNCED.allowed_ips
        assert observed_peers(DEVICE, device.peers, applied, NOW) == [ANNOUNCED]
    assert handovers(applied, device.peers) == []
    device.written.clear()
    return device, applied


def test_a_handover_is_no_difference_and_publishing_it_neither() -> None:
    """The device holds what is asked for before, after, and when the peer publishes its key."""
    device, applied = handed_over()
    assert list(device.peers) == [KEYS[1]]
    assert observed_peers(DEVICE, device.peers, applied, NOW) == [ANNOUNCED]
    applied = bring(device, applied, [NEW])
    assert device.written == []
    assert observed_peers(DEVICE, device.peers, applied, NOW) == [NEW]


def test_publishing_in_two_stages_removes_nothing_that_is_in_use() -> None:
    """A plan adds first and deletes in its last stage: the deletion of the old key spares the new one."""
    device, applied = handed_over()
    add, delete = steps([ANNOUNCED], [NEW])
    for step in (add, delete):
        applied, failed = change(device, applied, [step])
        assert not failed
    assert device.written == []
    assert list(applied) == [KEYS[1]]


def test_an_agent_that_starts_after_a_handover_keeps_it() -> None:
    """It knows of no announcement; the peer still publishes the old key: nothing is written all the same."""
    device, _ = handed_over()
    assert observed_peers(DEVICE, device.peers, {}, NOW) == [NEW]
    applied = bring(device, {}, [ANNOUNCED])
    assert device.written == []
    assert observed_peers(DEVICE, device.peers, applied, NOW) == [ANNOUNCED]


def test_publishing_without_a_handover_swaps_the_peers() -> None:
    """Where the handshake was missed, the new key gets the networks first."""
    device = Memory()
    applied = bring(device, {}, [ANNOUNCED])
    device.written.clear()
    bring(device, applied, [NEW])
    assert [(change.public_key, change.remove) for change in device.written] == [(KEYS[1], False), (KEYS[0], True)]


def test_a_peer_that_takes_back_its_new_key_has_the_old_one() -> None:
    """Also after it had used the new one."""
    device, applied = handed_over()
    bring(device, applied, [OLD])
    assert list(device.peers) == [KEYS[0]]
    assert device.peers[KEYS[0]].allowed_ips == OLD.allowed_ips


# --- what the device has ----------------------------------------------------------------------------------


def live(number: int, **fields: object) -> RawPeer:
    """Return a peer as the device has it after it was applied."""
    values = {"endpoint": ENDPOINTS[0], "allowed_ips": (NETWORKS[number],), "keepalive": 5} | fields
    return RawPeer(public_key=KEYS[number], **values)  # type: ignore[arg-type]


def by_key(raw: Sequence[RawPeer]) -> dict[str, RawPeer]:
    """Return peers by their keys."""
    return {raw_peer.public_key: raw_peer for raw_peer in raw}


def observed(*raw: RawPeer, applied: Sequence[WireGuardPeer] = ()) -> list[WireGuardPeer]:
    """Return the resources of a device with these peers."""
    return observed_peers(DEVICE, by_key(raw), {resource.public_key: resource for resource in applied}, NOW)


def test_a_peer_of_another_program_is_observed_as_it_is() -> None:
    """Also without an endpoint, which a peer of the agent has: it is deleted then."""
    nowhere = (parse_address("0.0.0.0"), 0)
    assert observed(live(0, endpoint=None), live(1)) == [peer(0, endpoint=nowhere), peer(1)]
    assert observed(live(1), live(0), applied=[peer(0)]) == [peer(0), peer(1)]
    assert observed(live(1), applied=[peer(0)]) == [peer(1)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, peer(0)),
        ({"keepalive": 7}, peer(0, keepalive=7)),
        ({"allowed_ips": ()}, peer(0, allowed_ips=())),
        ({"endpoint": ENDPOINTS[1]}, peer(0, endpoint=ENDPOINTS[1])),
        ({"endpoint": ENDPOINTS[1], "last_handshake": NOW - 1}, peer(0)),
        ({"endpoint": ENDPOINTS[1], "last_handshake": NOW - SESSION}, peer(0, endpoint=ENDPOINTS[1])),
        ({"endpoint": ENDPOINTS[1], "last_handshake": NOW + 1}, peer(0, endpoint=ENDPOINTS[1])),
        ({"endpoint": None}, peer(0, intact=False)),
        ({"preshared": True}, peer(0, intact=False)),
    ],
)
def test_a_peer_is_observed_with_what_differs(fields: dict[str, object], expected: WireGuardPeer) -> None:
    """An endpoint of a session is none; a lost endpoint and a preshared key are."""
    assert observed(live(0, **fields), applied=[peer(0)]) == [expected]


def test_a_handover_that_was_interrupted_is_a_difference() -> None:
    """Networks are left at the old key, while the announced one is in use."""
    new = live(1, allowed_ips=(), last_handshake=NOW)
    assert [resource.intact for resource in observed(live(0), new, applied=[ANNOUNCED])] == [False]
    assert [resource.intact for resource in observed(live(0, allowed_ips=()), new, applied=[ANNOUNCED])] == [True]
    assert [resource.intact for resource in observed(live(0), applied=[ANNOUNCED])] == [False]


def changes_to(after: WireGuardPeer, *raw: RawPeer, before: WireGuardPeer | None = None) -> list[PeerChange]:
    """Return the changes to a peer, none of whose keys another peer uses."""
    return peer_changes(before, after, by_key(raw), NOW, {key_in_use(after, by_key(raw)), after.successor})


def test_a_preshared_key_is_removed_with_its_peer() -> None:
    """The peer is added again with everything."""
    assert changes_to(peer(0), live(0, preshared=True), before=peer(0)) == [
        PeerChange(public_key=KEYS[0], remove=True),
        PeerChange(public_key=KEYS[0], endpoint=ENDPOINTS[0], keepalive=5, allowed_ips=(NETWORKS[0],)),
    ]


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"keepalive": 7}, {"keepalive": 5}),
        ({"allowed_ips": (NETWORKS[1],)}, {"allowed_ips": (NETWORKS[0],), "replace_allowed_ips": True}),
        ({"allowed_ips": NETWORKS[:2]}, {"allowed_ips": (NETWORKS[0],), "replace_allowed_ips": True}),
        ({"allowed_ips": ()}, {"allowed_ips": (NETWORKS[0],)}),
        ({"endpoint": ENDPOINTS[1]}, {"endpoint": ENDPOINTS[0]}),
        ({"endpoint": None}, {"endpoint": ENDPOINTS[0]}),
        ({"endpoint": None, "last_handshake": NOW - 1}, {"endpoint": ENDPOINTS[0]}),
    ],
)
def test_a_change_has_what_differs_only(fields: dict[str, object], change: dict[str, object]) -> None:
    """Networks that are too many are removed with all others, in the same change."""
    expected = PeerChange(public_key=KEYS[0], **change)  # type: ignore[arg-type]
    assert changes_to(peer(0), live(0, **fields), before=peer(0)) == [expected]
    assert changes_to(peer(0), live(0), before=peer(0)) == []


def test_an_announced_key_that_is_withdrawn_is_removed() -> None:
    """And one that is announced instead is added."""
    second = replace(OLD, successor=KEYS[2])
    raw = (live(0), RawPeer(public_key=KEYS[1]))
    assert changes_to(second, *raw, before=ANNOUNCED) == [
        PeerChange(public_key=KEYS[2]),
        PeerChange(public_key=KEYS[1], remove=True),
    ]
    assert changes_to(OLD, *raw, before=ANNOUNCED) == [PeerChange(public_key=KEYS[1], remove=True)]


def test_networks_move_before_the_old_key_is_removed() -> None:
    """With the keepalive, which the old key loses; the next call removes the old key."""
    applied = {KEYS[3]: peer(3), KEYS[0]: ANNOUNCED}
    announced, in_use = RawPeer(public_key=KEYS[1]), RawPeer(public_key=KEYS[1], last_handshake=NOW)
    assert handovers(applied, by_key([live(0), announced])) == []
    assert handovers(applied, by_key([live(0), in_use])) == [
        PeerChange(public_key=KEYS[1], keepalive=5, allowed_ips=(NETWORKS[0],)),
        PeerChange(public_key=KEYS[0], keepalive=0),
    ]
    moved = replace(in_use, allowed_ips=(NETWORKS[0],))
    assert handovers(applied, by_key([live(0, allowed_ips=()), moved])) == [
        PeerChange(public_key=KEYS[0], remove=True)
    ]
    assert handovers(applied, by_key([moved])) == []


def test_an_endpoint_is_written_during_a_session_only_if_it_is_configured_anew() -> None:
    """The peer may have moved there; another change of the peer does not undo that."""
    device = Memory()
    applied = bring(device, {}, [peer(0)])
    device.shake_hands(KEYS[0], now=time.time(), endpoint=ENDPOINTS[2])
    device.written.clear()
    applied, _ = change(device, applied, [Step(old=peer(0), new=peer(0, keepalive=9))])
    assert device.written == [PeerChange(public_key=KEYS[0], keepalive=9)]
    device.written.clear()
    change(device, applied, [Step(old=peer(0), new=peer(0, keepalive=9, endpoint=ENDPOINTS[1]))])
    assert device.written == [PeerChange(public_key=KEYS[0], endpoint=ENDPOINTS[1])]


class Refusing(Memory):
    """A device that refuses changes of some keys. `writes`: how many it was asked for."""

    def __init__(self, *keys: str) -> None:
        super().__init__()
        self.keys, self.writes = keys, 0

    def write(self, change: DeviceChange) -> None:
        self.writes += 1
        if any(peer_change.public_key in self.keys for peer_change in change.peers):
            raise BackendError("wireguard", "set", "device mc-wg0", "Invalid argument")
        super().write(change)


def test_a_refused_peer_does_not_hold_up_the_others() -> None:
    """Its error names it; what was applied of it before counts still."""
    device = Refusing()
    applied = bring(device, {}, [peer(0), peer(1)])
    assert device.writes == 1
    device.keys = (KEYS[1], KEYS[3])
    changed = peer(1, keepalive=9)
    plan = [Step(old=peer(1), new=changed), Step(new=peer(2)), Step(new=peer(3)), Step(old=peer(0))]
    applied, errors = change(device, applied, plan)
    assert applied == {KEYS[1]: peer(1), KEYS[2]: peer(2)}
    assert {place: str(error) for place, error in errors.items()} == {
        0: f"wireguard: replace peer {KEYS[1]} of {DEVICE}: Invalid argument",
        2: f"wireguard: add peer {KEYS[3]} of {DEVICE}: Invalid argument",
    }
    assert sorted(device.peers) == sorted([KEYS[1], KEYS[2]])
    assert device.writes == 1 + 1 + 4


def test_a_deletion_that_is_refused_is_an_error() -> None:
    """And nothing is written where there is nothing to write."""
    device = Refusing(KEYS[0])
    device.peers = by_key([live(0)])
    applied, errors = change(device, {KEYS[0]: peer(0)}, [Step(old=peer(0))])
    assert [str(error) for error in errors.values()] == [
        f"wireguard: delete peer {KEYS[0]} of {DEVICE}: Invalid argument"
    ]
    assert applied == {}
    device.writes = 0
    assert change(device, {}, [Step(old=peer(2))]) == ({}, {})
    assert device.writes == 0


# --- the two protocols ----------------------------------------------------------------------------------

changes = st.builds(
    PeerChange,
    public_key=st.sampled_from(KEYS),
    endpoint=st.sampled_from([*ENDPOINTS, (parse_address("2001:db8::1"), 4500)]),
    keepalive=st.integers(0, 65535),
    allowed_ips=st.lists(st.sampled_from(NETWORKS), unique=True).map(tuple),
)


@given(st.lists(changes, unique_by=lambda one: one.public_key), st.integers(1, 65535), st.integers(0, 2**32 - 1))
def test_netlink_messages_say_what_was_meant(peers: list[PeerChange], port: int, mark: int) -> None:
    """What is packed to be set reads as what a device would answer."""
    change = DeviceChange(private_key=bytes(range(32)), listen_port=port, fwmark=mark, peers=peers)
    read = kernel.parse_device(sent(change))
    assert (read.listen_port, read.fwmark) == (port, mark)
    assert list(read.peers.values()) == [
        RawPeer(
            public_key=peer.public_key,
            endpoint=peer.endpoint,
            keepalive=peer.keepalive or 0,
            allowed_ips=tuple(sorted(peer.allowed_ips, key=network_key)),
        )
        for peer in peers
    ]


def sent(change: DeviceChange) -> list[wgmsg]:
    """Return the messages of a change as the kernel would read them."""
    messages = []
    for message in kernel.set_messages(DEVICE, change):
        message.encode()
        assert len(message.data) < 1 << 16
        messages.append(wgmsg(bytes(message.data)))
        messages[-1].decode()
    return messages


def test_very_many_peers_take_several_messages() -> None:
    """No attribute grows beyond what its length field holds, and none is lost."""
    keys = [base64.b64encode(number.to_bytes(32, "big")).decode() for number in range(1, 1001)]
    peers = [
        PeerChange(public_key=key, endpoint=ENDPOINTS[0], allowed_ips=NETWORKS[:1], keepalive=5) for key in keys
    ]
    messages = sent(DeviceChange(private_key=bytes(range(32)), peers=peers))
    assert len(messages) > 1
    assert list(kernel.parse_device(messages).peers) == keys
    assert [message.get_attr("WGDEVICE_A_PRIVATE_KEY") is not None for message in messages] == [True] + [False] * 4


def test_a_peer_cut_in_two_by_the_kernel_is_one() -> None:
    """The rest of its networks comes in the next message."""
    halves = [PeerChange(public_key=KEYS[0], allowed_ips=NETWORKS[place::2]) for place in (0, 1)]
    messages = [message for half in halves for message in sent(DeviceChange(peers=[half]))]
    assert kernel.parse_device(messages).peers[KEYS[0]].allowed_ips == tuple(sorted(NETWORKS, key=network_key))


def test_an_answer_of_userspace_wireguard_is_read() -> None:
    """The example of wireguard.com/xplatform, with what newer versions add."""
    text = """private_key=e84b5a6d2717c1003a13b431570353dbaca9146cf150c5f8575680feba52027a
listen_port=12912
fwmark=7
public_key=b85996fecc9c7f1fc6d2572a76eda11d59bcd20be8e543b15ce4bd85a8e75a33
preshared_key=188515093e952f5f22e865cef3012e72f8b5f0b598ac0309d5dacce3b70fcf52
allowed_ip=192.168.4.4/32
endpoint=[abcd:23::33%2]:51820
protocol_version=1
public_key=58402e695ba1772b1cc9309755f043251ea77fdcf10fbe63989ceb7e19321376
tx_bytes=38333
rx_bytes=2224
allowed_ip=192.168.4.6/32
allowed_ip=192.168.4.10/31
persistent_keepalive_interval=111
endpoint=182.122.22.19:3233
last_handshake_time_sec=1600000000
last_handshake_time_nsec=500000000
something_new=1
"""
    read = uapi.parse_device(text)
    first, second = read.peers.values()
    assert (read.listen_port, read.fwmark, len(read.public_key)) == (12912, 7, 44)
    assert read.private_key is not None
    assert read.private_key.hex() not in repr(read)
    assert first.preshared
    assert first.endpoint == (parse_address("abcd:23::33"), 51820)
    assert second == RawPeer(
        public_key="WEAuaVuhdyscyTCXVfBDJR6nf9zxD75jmJzrfhkyE3Y=",
        endpoint=(parse_address("182.122.22.19"), 3233),
        allowed_ips=tuple(parse_network(network)[0] for network in ("192.168.4.6/32", "192.168.4.10/31")),
        keepalive=111,
        last_handshake=1600000000.5,
        received=2224,
        sent=38333,
    )
