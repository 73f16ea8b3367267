"""Several WireGuard devices of one backend: the kernel's, with the same key and peers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.nodes import netns
from devtools.waiting import wait_until
from mcagent.model.dataplane.resources import Resource
from mcagent.model.dataplane.wireguard import MAX_DEVICES, WireGuardImplementation
from tests.contract.inside import adds, as_mapping, make, steps_to
from tests.contract.wireguard_nodes import PORT, WireGuardNode, connect, missing, peer, two_nodes

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

KERNEL = WireGuardImplementation.KERNEL


@pytest.fixture(scope="module", autouse=True)
def _needs_the_kernels() -> None:
    reason = missing(KERNEL)
    if reason:
        pytest.skip(reason)


@pytest.fixture
def node(fresh_namespace: str, tmp_path: Path) -> Iterator[WireGuardNode]:
    """Give one Node."""
    netns.ip(fresh_namespace, "link", "set", "lo", "up")
    node = WireGuardNode(1, fresh_namespace, tmp_path, KERNEL)
    yield node
    node.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[WireGuardNode, WireGuardNode]]:
    """Give two Nodes on one underlay, without devices."""
    with two_nodes(tmp_path, KERNEL) as (first_node, two):
        connect((first_node, two))
        yield first_node, two


def all_of(node: WireGuardNode, count: int = MAX_DEVICES) -> list[Resource]:
    """Return so many devices with two peers each."""
    peers = [peer(node, number, device=node.devices[index]) for index in range(count) for number in (0, 1)]
    return [*(node.value(index) for index in range(count)), *peers]


def differs(node: WireGuardNode) -> bool:
    """Return whether the Node's backend sees a difference."""
    return netns.call(node.namespace, node.wireguard.differs)


def test_all_devices_are_made_and_the_next_agent_finds_them(node: WireGuardNode) -> None:
    """Each has its port, the key and the peers; a new backend has nothing to do."""
    resources = all_of(node)
    make(node.backend, resources)
    assert not differs(node)
    node.backend.close()
    node.backend = node.new_backend()
    assert node.backend.observe() == as_mapping(resources)
    assert not differs(node)
    statuses = netns.call(node.namespace, node.wireguard.statuses)
    expected = {(name, PORT + index) for index, name in enumerate(node.devices)}
    assert {(status.device, status.device_port) for status in statuses} == expected
    assert {status.device_key for status in statuses} == {node.store.ensure().current.public}
    assert len(statuses) == 2 * MAX_DEVICES


def test_fewer_devices_leave_nothing_of_the_others(node: WireGuardNode) -> None:
    """Also those of an agent that has ended."""
    make(node.backend, all_of(node))
    node.backend.close()
    node.backend = node.new_backend()
    make(node.backend, all_of(node, 2))
    assert node.backend.observe() == as_mapping(all_of(node, 2))
    shown = netns.ip(node.namespace, "-br", "link")
    assert [name in shown for name in node.devices] == [True, True, False, False]


def test_a_device_of_somebody_else_fails_its_own_steps_only(node: WireGuardNode) -> None:
    """Its name is taken: it and its peers fail, the other devices work."""
    netns.ip(node.namespace, "link", "add", node.devices[2], "type", "veth", "peer", "name", "other")
    result = node.backend.apply(steps_to(node.backend.observe(), all_of(node)))
    assert len(result.failed) == 3
    assert {node.devices[2]} == {str(step.key[1]) for step, _ in result.failed}
    assert "not ours" in str(result.failed[0][1])
    assert node.devices[2] not in {str(key[1]) for key in node.backend.observe()}
    assert len(node.backend.observe()) == 9
    assert "veth" in netns.ip(node.namespace, "-d", "link", "show", "dev", node.devices[2])


def test_a_port_in_use_fails_its_own_steps_only(node: WireGuardNode) -> None:
    """Another program's socket has the port of the second device, which is completed when it is free."""
    sock = netns.call(node.namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sock.bind(("0.0.0.0", PORT + 1))
    try:
        result = node.backend.apply(adds(*all_of(node)))
        assert f"UDP port {PORT + 1} is already in use" in str(result.failed[0][1])
        assert {str(step.key[1]) for step, _ in result.failed} == {node.devices[1]}
    finally:
        sock.close()
    make(node.backend, all_of(node))
    assert node.backend.observe() == as_mapping(all_of(node))


def test_a_device_that_is_none_of_ours_is_refused(node: WireGuardNode) -> None:
    """A wrong plan reaches no other program's device; wireguard-go is for the first device."""
    netns.ip(node.namespace, "link", "add", "theirs0", "type", "wireguard")
    result = node.backend.apply(adds(node.value(name="theirs0"), peer(node, 0, device="theirs0")))
    assert [error.retryable for _, error in result.failed] == [False, False]
    result = node.backend.apply(adds(node.value(1, implementation=WireGuardImplementation.USERSPACE)))
    assert "only the first device" in str(result.failed[0][1])


@pytest.mark.parametrize("default", [0, 1, 2])
def test_a_check_of_sources_that_is_not_loose_is_repaired(node: WireGuardNode, default: int) -> None:
    """On the devices that are to have it, whatever the namespace's default; of the others nothing is expected."""
    netns.execute(node.namespace, ["sysctl", "-qw", f"net.ipv4.conf.default.rp_filter={default}"])
    resources = all_of(node, 2)
    make(node.backend, resources)
    assert _rp_filters(node) == [str(default), "2"]
    assert node.backend.observe() == as_mapping(resources)
    for value in (0, 1):
        netns.execute(node.namespace, ["sysctl", "-qw", f"net.ipv4.conf.{node.devices[1]}.rp_filter={value}"])
        assert differs(node)
        result = make(node.backend, resources)
        assert [step.key for step in result.done] == [resources[1].key]
        assert _rp_filters(node) == [str(default), "2"]
        assert not differs(node)
    loose: list[Resource] = [node.value(0, loose_source_check=True), *resources[1:]]
    make(node.backend, loose)
    assert _rp_filters(node) == ["2", "2"]
    node.backend = node.new_backend()
    assert node.backend.observe() == as_mapping(loose)


def _rp_filters(node: WireGuardNode) -> list[str]:
    paths = [f"/proc/sys/net/ipv4/conf/{name}/rp_filter" for name in node.devices[:2]]
    return netns.execute(node.namespace, ["cat", *paths]).stdout.split()


def test_peers_in_a_session_are_ready(pair: tuple[WireGuardNode, WireGuardNode]) -> None:
    """While a further device has a session; each change is a difference until it was read."""
    one, two = pair
    key = two.store.ensure().current.public
    assert _ready(one) == frozenset()
    for node, other in ((one, two), (two, one)):
        make(node.backend, [node.value(0), node.value(1), other.peer_for(node), other.peer_for(node, 1)])
    wait_until(lambda: differs(one) and len(_ready(one)) == 2, "handshakes")
    assert _ready(one) == {(name, key) for name in one.devices[:2]}
    assert not differs(one)
    fresh = one.new_backend()
    assert netns.call(one.namespace, fresh.backend.ready) == _ready(one)  # type: ignore[attr-defined]
    make(one.backend, [one.value(0), one.value(1), two.peer_for(one)])
    assert differs(one)
    assert _ready(one) == frozenset()
    assert not differs(one)


def _ready(node: WireGuardNode) -> frozenset[tuple[str, str]]:
    return netns.call(node.namespace, node.wireguard.ready)


def test_an_announced_key_is_handed_over_on_every_device(pair: tuple[WireGuardNode, WireGuardNode]) -> None:
    """And the peer is ready under either key until it publishes the new one."""
    one, two = pair

    def bring(node: WireGuardNode, other: WireGuardNode) -> None:
        make(node.backend, [node.value(0), node.value(1), other.peer_for(node), other.peer_for(node, 1)])

    def shaken(key: str) -> set[str]:
        statuses = netns.call(one.namespace, one.wireguard.statuses)
        return {status.device for status in statuses if status.public_key == key and status.last_handshake}

    before = two.store.ensure().current.public
    bring(one, two)
    bring(two, one)
    wait_until(lambda: shaken(before) == set(one.devices[:2]), "handshakes")
    two.store.prepare_next()
    bring(one, two)
    assert one.wireguard.awaits_keys
    two.store.promote_next()
    new = two.store.ensure().current.public
    make(two.backend, [two.value(0), two.value(1), one.peer_for(two), one.peer_for(two, 1)])
    wait_until(lambda: shaken(new) == set(one.devices[:2]), "handshakes under the new key")
    for _ in range(2):
        netns.call(one.namespace, one.wireguard.hand_over)
    statuses = netns.call(one.namespace, one.wireguard.statuses)
    assert {(status.device, status.public_key) for status in statuses} == {(name, new) for name in one.devices[:2]}
    assert _ready(one) == {(name, key) for name in one.devices[:2] for key in (before, new)}
    assert not differs(one)
    bring(one, two)
    assert not one.wireguard.awaits_keys
    assert _ready(one) == {(name, new) for name in one.devices[:2]}
