"""The WireGuard backend against the kernel's WireGuard (where it has it) and wireguard-go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.nodes import netns
from mcagent.dataplane.netlink.connection import NetlinkSocket
from mcagent.dataplane.wireguard import device as wireguard_device
from mcagent.dataplane.wireguard import userspace
from mcagent.model.dataplane.resources import Resource
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.errors import BackendError
from mcagent.model.net import parse_address, parse_network
from tests.contract.inside import adds, as_mapping, make
from tests.contract.suite import BackendContract, Case
from tests.contract.wireguard_nodes import KEYS, PORT, WireGuardNode, missing, peer, random_key, resources

pytestmark = [pytest.mark.contract, pytest.mark.datapath]


@pytest.fixture(params=list(WireGuardImplementation), scope="module")
def implementation(request: pytest.FixtureRequest) -> WireGuardImplementation:
    """Give each implementation that there is here."""
    reason = missing(request.param)
    if reason:
        pytest.skip(reason)
    return WireGuardImplementation(request.param)


@pytest.fixture
def node(fresh_namespace: str, tmp_path: Path, implementation: WireGuardImplementation) -> Iterator[WireGuardNode]:
    """Give one Node."""
    netns.ip(fresh_namespace, "link", "set", "lo", "up")
    node = WireGuardNode(1, fresh_namespace, tmp_path, implementation)
    yield node
    node.close()


def networks(*texts: str) -> tuple[object, ...]:
    """Return networks of their text."""
    return tuple(parse_network(text)[0] for text in texts)


def foreign_view(node: WireGuardNode) -> str:
    """Return what the foreign device looks like."""
    return netns.ip(node.namespace, "-d", "link", "show", "dev", "foreign0") + netns.ip(
        node.namespace, "address", "show", "dev", "foreign0"
    )


def add_foreign(node: WireGuardNode) -> None:
    """Make a WireGuard (or TUN) device that is not ours."""
    kind = ["link", "add", "foreign0", "type", "wireguard"]
    if node.implementation is WireGuardImplementation.USERSPACE:
        kind = ["tuntap", "add", "foreign0", "mode", "tun"]
    netns.ip(node.namespace, *kind)
    netns.ip(node.namespace, "address", "add", "10.0.0.1/24", "dev", "foreign0")


class TestWireGuard(BackendContract):
    """The contract of every backend."""

    @pytest.fixture
    def case(self, node: WireGuardNode) -> Case:
        """Give a device and peers that differ in everything that a peer has."""
        return Case(
            backend=node.backend,
            base=(node.value(),),
            pool=(
                peer(node, 0),
                peer(node, 1, allowed_ips=networks("10.101.0.0/32", "10.110.0.0/16", "fd00:1::/64")),
                peer(node, 2, keepalive=0, endpoint=(parse_address("2001:db8::2"), 4500)),
                peer(node, 3, allowed_ips=()),
                peer(node, 0, keepalive=25, allowed_ips=networks("10.104.0.0/32")),
                peer(node, 1, endpoint=(parse_address("198.51.100.77"), 51000)),
                peer(node, 1, allowed_ips=networks("10.110.0.0/16")),
            ),
            refused=peer(node, 4, public_key="bm8ga2V5"),
            add_foreign=lambda: add_foreign(node),
            foreign=lambda: foreign_view(node),
            break_facility=lambda: None,
        )

    def test_a_facility_that_is_away_is_told_as_such(self, case: Case) -> None:
        """The kernel does not go away, a socket may: both calls raise BackendError, the next ones work."""
        make(case.backend, case.base)

        def refuse(*_: object) -> NetlinkSocket:
            raise BackendError("netlink", "open", "socket", "too many open files")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wireguard_device, "NetlinkSocket", refuse)
            with pytest.raises(BackendError) as observing:
                case.backend.observe()
            with pytest.raises(BackendError) as applying:
                case.backend.apply(adds(*case.whole))
        assert observing.value.backend == applying.value.backend == "wireguard"
        make(case.backend, case.whole)
        assert case.backend.observe() == as_mapping(case.whole)


def test_the_next_agent_finds_everything_and_has_nothing_to_do(node: WireGuardNode) -> None:
    """A backend that starts anew sees the same device and peers, and the same wireguard-go process."""
    all_resources = resources(
        node, peer(node, 0), peer(node, 1, allowed_ips=networks("10.101.0.0/32", "10.110.0.0/16"))
    )
    make(node.backend, all_resources)
    process = netns.call(node.namespace, node.wireguard.process)
    node.backend.close()
    node.backend = node.new_backend()
    assert node.backend.observe() == as_mapping(all_resources)
    assert netns.call(node.namespace, node.wireguard.process) == process
    assert (process is not None) == (node.implementation is WireGuardImplementation.USERSPACE)


@pytest.mark.parametrize(
    "more",
    [
        {"listen_port": 51999},
        {"mtu": 1380},
        {"fwmark": 0x6D63},
        {"addresses": (parse_address("10.96.0.7"), parse_address("fd00:7::1"))},
    ],
)
def test_a_changed_device_keeps_its_peers(node: WireGuardNode, more: dict[str, object]) -> None:
    """Port, MTU, mark and addresses change on the device that is there."""
    make(node.backend, resources(node, peer(node, 0)))
    all_resources: list[Resource] = [node.value(**more), peer(node, 0)]
    result = make(node.backend, all_resources)
    assert [step.key for step in result.done] == [node.value().key]
    assert node.backend.observe() == as_mapping(all_resources)


@pytest.mark.parametrize(
    "spoil",
    [
        ["ip", "link", "set", "DEVICE", "down"],
        ["ip", "link", "set", "DEVICE", "mtu", "1300"],
        ["ip", "link", "set", "DEVICE", "alias", "mine"],
        ["ip", "address", "flush", "dev", "DEVICE"],
        ["ip", "address", "add", "10.3.0.1/24", "dev", "DEVICE"],
        ["ip", "link", "delete", "DEVICE"],
        ["wg", "set", "DEVICE", "listen-port", "4000"],
        ["wg", "set", "DEVICE", "fwmark", "7"],
        ["wg", "set", "DEVICE", "peer", KEYS[0], "remove"],
        ["wg", "set", "DEVICE", "peer", KEYS[4], "allowed-ips", "10.100.0.0/32"],
        ["wg", "set", "DEVICE", "peer", KEYS[0], "endpoint", "203.0.113.9:7"],
        ["wg", "set", "DEVICE", "peer", KEYS[0], "persistent-keepalive", "off"],
        ["wg", "set", "DEVICE", "peer", KEYS[0], "allowed-ips", "10.9.0.0/16"],
        ["wg", "set", "DEVICE", "peer", KEYS[0], "preshared-key", "FILE"],
        ["wg", "set", "DEVICE", "private-key", "FILE"],
    ],
    ids=lambda words: " ".join(words[:3] if words[0] == "ip" else words[3:4] + words[5:6]),
)
def test_what_somebody_changes_is_noticed_and_repaired(
    node: WireGuardNode, tmp_path: Path, spoil: list[str]
) -> None:
    """Every detail of device and peers that others can change is a difference; one repair mends it."""
    if "alias" in spoil and node.implementation is WireGuardImplementation.USERSPACE:
        pytest.skip("a TUN device in use and without our mark may be anybody's")
    all_resources = resources(node, peer(node, 0), peer(node, 1))
    make(node.backend, all_resources)
    secret = tmp_path / "secret"
    secret.write_text(random_key())
    words = [{"DEVICE": node.device, "FILE": str(secret)}.get(word, word) for word in spoil]
    if words[0] == "wg":
        node.wg(words[1], *words[3:])
    else:
        netns.execute(node.namespace, words)
    assert netns.call(node.namespace, node.wireguard.differs)
    assert node.backend.observe() != as_mapping(all_resources)
    if "alias" in spoil:
        netns.ip(node.namespace, "link", "delete", node.device)  # whose it is now nobody can tell
    make(node.backend, all_resources)
    make(node.backend, all_resources)
    assert node.backend.observe() == as_mapping(all_resources)
    assert not netns.call(node.namespace, node.wireguard.differs)


def test_a_device_of_somebody_else_with_our_name_is_left_alone(node: WireGuardNode) -> None:
    """It is not observed, and setting up ours there is refused by name."""
    netns.ip(node.namespace, "link", "add", node.device, "type", "veth", "peer", "name", "other")
    assert node.backend.observe() == {}
    result = node.backend.apply(adds(node.value(), peer(node, 0)))
    assert str(result.failed[0][1]).endswith("remove it, or configure another name")
    assert len(result.failed) == 2
    assert "veth" in netns.ip(node.namespace, "-d", "link", "show", "dev", node.device)


def test_a_key_that_the_key_file_does_not_have_is_refused(node: WireGuardNode) -> None:
    """The error names the file and the key; no device is left."""
    result = node.backend.apply(adds(node.value(public_key=KEYS[0])))
    assert f"key file {node.store.path} has no private key for {KEYS[0]}" in str(result.failed[0][1])
    assert node.backend.observe() == {}


def test_a_port_in_use_is_said_so(node: WireGuardNode) -> None:
    """Somebody else's UDP socket on the port is what the error says."""
    import socket

    sock = netns.call(node.namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sock.bind(("0.0.0.0", PORT))
    try:
        result = node.backend.apply(adds(node.value()))
        assert "in use" in str(result.failed[0][1])
    finally:
        sock.close()
    make(node.backend, [node.value()])


def test_a_lost_key_file_is_written_again_with_the_key_in_use(node: WireGuardNode) -> None:
    """The device still has the key, so the Node keeps its identity."""
    make(node.backend, resources(node))
    before = node.store.ensure().current.public
    node.store.path.unlink()
    keys = netns.call(node.namespace, node.wireguard.keys)
    assert keys.current.public == before


def test_no_implementation_is_a_clear_error(node: WireGuardNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is there: the fact says so, and setting up a device says what to install."""
    if node.implementation is not WireGuardImplementation.USERSPACE:
        pytest.skip("about wireguard-go only")
    monkeypatch.setattr(userspace, "BINARY", "no-such-wireguard-go")
    assert netns.call(node.namespace, node.wireguard.implementation) is None
    result = node.backend.apply(adds(node.value()))
    assert "install" in str(result.failed[0][1])


def test_a_peer_of_somebody_else_that_went_away_again_is_forgotten(node: WireGuardNode) -> None:
    """It was seen once; afterwards its absence is no disturbance."""
    make(node.backend, resources(node, peer(node, 0)))
    node.wg("set", "peer", KEYS[4], "allowed-ips", "10.77.0.0/32")
    assert peer(node, 4).key in node.backend.observe()
    node.wg("set", "peer", KEYS[4], "remove")
    assert netns.call(node.namespace, node.wireguard.differs)
    node.backend.observe()
    assert not netns.call(node.namespace, node.wireguard.differs)
