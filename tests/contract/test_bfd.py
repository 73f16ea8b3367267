"""What the failover rests on in a real Open vSwitch: BFD on fixed-peer tunnels, and buckets that watch them.

Two of them in namespaces of their own, joined by a veth, both with the datapath that the Node would have.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from mcagent.core.failover.detection import ALARM_DIAGNOSTICS
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.dataplane.resources import BFD_MAC
from tests.contract.ovs_values import DATAPATH
from tests.waiting import allowed

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

BRIDGE = "br-mc"
PEER, SILENT = 2, 3  # ports of the first switch: to the second one, and to nobody
INTERVAL = 100  # milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two switches, each with a tunnel to the other (port 2); the first has one to nobody, too (port 3)."""

    first: OvsInstance
    second: OvsInstance

    def status(self, key: str) -> str:
        """Return a value of the first one's bfd_status of the tunnel between the two."""
        text = self.first.vsctl("get", "interface", "peer", "bfd_status")
        match = re.search(rf"\b{key}=\"?([^,\"}}]*)", text)
        return match[1] if match else ""

    def bfd(self, **values: object) -> None:
        """Change what the second one does."""
        settings = (f"bfd:{key}={str(value).lower()}" for key, value in values.items())
        self.second.vsctl("set", "interface", "peer", *settings)

    def ways(self, group: int, connections: int = 24) -> set[int]:
        """Return the ports that so many connections take through a group of the first switch, now."""
        ports_used = set()
        for number in range(connections):
            packet = f"in_port=1,tcp,nw_src=10.1.0.1,nw_dst=10.2.0.1,nw_ttl=9,tcp_src={2000 + number},tcp_dst=80"
            self.first.ofctl("mod-flows", self.first.mgmt(BRIDGE), f"table=0,actions=group:{group}")
            text = self.first.appctl("ofproto/trace", BRIDGE, packet)
            match = re.search(r"^ *output:(\d+)", text, re.MULTILINE)
            ports_used.add(int(match[1]) if match else 0)
        return ports_used


def _switch(name: str, index: int, directory: Path) -> OvsInstance:
    ovs = OvsInstance.start(name, directory)
    mac = f"02:00:00:00:0c:0{index}"
    device = "eth0"
    if DATAPATH is DatapathType.NETDEV:
        device = "br-phy"
        ovs.vsctl(
            *(
                "add-br",
                device,
                "--",
                "set",
                "bridge",
                device,
                "datapath_type=netdev",
                f'other_config:hwaddr="{mac}"',
            ),
            *("--", "add-port", device, "eth0"),
        )
    netns.ip_batch(
        name, [f"address add 10.77.0.{index}/24 dev {device}", f"link set {device} up", "link set eth0 up"]
    )
    ovs.vsctl(
        *("add-br", BRIDGE, "--", "set", "bridge", BRIDGE, f"datapath_type={DATAPATH}", "fail_mode=secure"),
        *("protocols=OpenFlow15", "--", "add-port", BRIDGE, "mc-gw0"),
        *("--", "set", "interface", "mc-gw0", "type=internal", "ofport_request=1"),
    )
    netns.ip_batch(
        name,
        [
            "link set mc-gw0 up",
            f"address add 10.{index}.0.1/32 dev mc-gw0",
            f"route add 10.{3 - index}.0.1 dev mc-gw0",
            f"neighbour add 10.{3 - index}.0.1 lladdr 0a:00:00:00:00:09 dev mc-gw0",
        ],
    )
    ovs.ofctl("add-flow", ovs.mgmt(BRIDGE), "table=0,actions=drop")
    return ovs


def _tunnel(ovs: OvsInstance, name: str, number: int, remote: str) -> None:
    ovs.vsctl(
        *("add-port", BRIDGE, name, "--", "set", "interface", name, "type=geneve", f"ofport_request={number}"),
        *(f"options:remote_ip={remote}", "options:key=flow"),
        *("bfd:enable=true", f"bfd:min_tx={INTERVAL}", f"bfd:min_rx={INTERVAL}", "bfd:mult=3"),
    )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Start both switches."""
    names = [f"mct{os.getpid()}-bfd{end}" for end in "ab"]
    instances: list[OvsInstance] = []
    try:
        for name in names:
            netns.create(name)
        netns.add_veth("eth0", names[0], "eth0", names[1])
        for index, name in enumerate(names, 1):
            instances.append(_switch(name, index, tmp_path_factory.mktemp("bfd")))
        _tunnel(instances[0], "silent", SILENT, "10.77.0.9")
        _tunnel(instances[0], "peer", PEER, "10.77.0.2")
        _tunnel(instances[1], "peer", PEER, "10.77.0.1")
        yield Pair(first=instances[0], second=instances[1])
    finally:
        for ovs in instances:
            ovs.stop()
        for name in names:
            netns.delete(name)


@pytest.fixture
def pair(running: Pair) -> Iterator[Pair]:
    """Give the switches with BFD up between them and no groups."""
    running.bfd(enable=True, cpath_down=False)
    wait_until(
        lambda: (running.status("state"), running.status("forwarding")) == ("up", "true"), "BFD", timeout=20
    )
    yield running
    running.first.ofctl("mod-flows", running.first.mgmt(BRIDGE), "table=0,actions=drop")
    running.first.ofctl("del-groups", running.first.mgmt(BRIDGE))


def select(pair: Pair, group: int, *buckets: str) -> None:
    """Make a group of the first switch that chooses by a hash of the connection."""
    fields = "selection_method=hash,fields(ip_src,ip_dst,tcp_src,tcp_dst)"
    text = ",".join((f"group_id={group},type=select,{fields}", *(f"bucket={bucket}" for bucket in buckets)))
    pair.first.ofctl("add-group", pair.first.mgmt(BRIDGE), text)


def to(port: int, *, watched: bool) -> str:
    """Return a bucket."""
    watch = f"watch_port={port}," if watched else ""
    return f"bucket_id={port},weight=100,{watch}actions=output:{port}"


@pytest.mark.timing
def test_bfd_comes_up_between_fixed_peers(pair: Pair) -> None:
    """With `key=flow` as our tunnels have it; a peer that never answers stays down, and says so."""
    text = pair.first.vsctl("get", "interface", "silent", "bfd_status")
    assert "state=down" in text
    assert 'forwarding="false"' in text
    assert "remote_state=down" in text


@pytest.mark.timing
def test_a_bucket_is_left_out_only_if_it_watches_what_is_down(pair: Pair) -> None:
    """So a peer that never answered is used by buckets that watch nothing."""
    select(pair, 1, to(PEER, watched=True), to(SILENT, watched=True))
    select(pair, 2, to(PEER, watched=True), to(SILENT, watched=False))
    assert pair.ways(1) == {PEER}
    assert pair.ways(2) == {PEER, SILENT}


@pytest.mark.timing
def test_a_session_goes_on_when_a_peer_learns_to_ask_for_the_mac(pair: Pair) -> None:
    """The column comes while the session is up, the other end has never heard of it: nothing goes down."""

    def up() -> bool:
        return pair.status("state") == pair.status("remote_state") == "up"

    wait_until(up, "the session to be up on both sides", timeout=10)
    flaps = pair.status("flap_count")
    pair.bfd(bfd_remote_dst_mac=f'"{BFD_MAC}"')
    until = time.monotonic() + 5 * 3 * INTERVAL / 1000  # five times what it takes to miss a peer
    while time.monotonic() < until:
        assert up()
    assert pair.status("flap_count") == flaps


def _session_stays_up(pair: Pair) -> bool:
    return pair.status("state") == pair.status("remote_state") == "up"


@pytest.mark.timing
def test_a_multiplier_changes_without_taking_the_session_down(pair: Pair) -> None:
    """Longer and shorter, at one end and at both: the agent does so when a path needs it."""
    wait_until(lambda: _session_stays_up(pair), "the session to be up on both sides", timeout=10)
    flaps = pair.status("flap_count")
    for multiplier in (24, 3, 6, 12, 3, 48, 3):
        for ovs in (pair.first, pair.second):
            ovs.vsctl("set", "interface", "peer", f"bfd:mult={multiplier}")
            until = time.monotonic() + 5 * INTERVAL / 1000  # some packets each way
            while time.monotonic() < until:
                assert _session_stays_up(pair)
    assert pair.status("flap_count") == flaps


@pytest.mark.timing
def test_a_mark_comes_and_goes_without_taking_the_session_down(pair: Pair) -> None:
    """The port stays the same one, too. In the userspace datapath it has no route then, until the mark goes."""
    wait_until(lambda: _session_stays_up(pair), "the session to be up on both sides", timeout=10)
    if DATAPATH is DatapathType.NETDEV:
        pair.first.vsctl("set", "interface", "peer", "options:egress_pkt_mark=32")
        try:
            wait_until(lambda: pair.status("state") == "down", "the session to end", timeout=10)
        finally:
            pair.first.vsctl("remove", "interface", "peer", "options", "egress_pkt_mark")
        wait_until(lambda: _session_stays_up(pair), "the session to be up again", timeout=10)
        return
    flaps, number = pair.status("flap_count"), pair.first.vsctl("get", "interface", "peer", "ofport", "_uuid")
    for change in ("options:egress_pkt_mark=32", "options:egress_pkt_mark=33"):
        pair.first.vsctl("set", "interface", "peer", change)
        until = time.monotonic() + 5 * INTERVAL / 1000
        while time.monotonic() < until:
            assert _session_stays_up(pair)
    pair.first.vsctl("remove", "interface", "peer", "options", "egress_pkt_mark")
    until = time.monotonic() + 5 * 3 * INTERVAL / 1000
    while time.monotonic() < until:
        assert _session_stays_up(pair)
    assert pair.status("flap_count") == flaps
    assert pair.first.vsctl("get", "interface", "peer", "ofport", "_uuid") == number


@pytest.mark.timing
def test_the_peers_multiplier_decides_how_long_its_packets_are_waited_for(pair: Pair) -> None:
    """As RFC 5880 (6.8.4) has it: so each end sets it for the other one, and both do where the path needs it.

    A switch that stops for a second is missed with a multiplier of 3 and not with one of 24. After an alarm both
    ends have a diagnostic, since their sessions survived; which one signalled first depends on timing.
    """

    def stop_second() -> None:
        process = pair.second.pids["ovs-vswitchd"]
        os.kill(process, signal.SIGSTOP)
        try:
            time.sleep(1.0)
        finally:
            os.kill(process, signal.SIGCONT)

    def flaps() -> str:
        wait_until(lambda: _session_stays_up(pair), "the session to be up on both sides", timeout=20)
        return pair.status("flap_count")

    for ovs in (pair.first, pair.second):
        ovs.vsctl("set", "interface", "peer", "bfd:mult=24")
    wait_until(
        lambda: "Remote Detect Multiplier: 24" in pair.first.appctl("bfd/show", "peer"), "the peer's", timeout=10
    )
    before = flaps()
    stop_second()
    assert flaps() == before
    pair.second.vsctl("set", "interface", "peer", "bfd:mult=3")
    wait_until(
        lambda: "Remote Detect Multiplier: 3\n" in pair.first.appctl("bfd/show", "peer"), "the peer's", timeout=10
    )
    stop_second()
    wait_until(lambda: pair.status("flap_count") != before and _session_stays_up(pair), "an alarm", timeout=20)
    assert {pair.status("diagnostic"), pair.status("remote_diagnostic")} <= ALARM_DIAGNOSTICS
    pair.first.vsctl("set", "interface", "peer", "bfd:mult=3")


@pytest.mark.timing
def test_a_trusted_bucket_carries_packets_while_bfd_is_down(pair: Pair) -> None:
    """Really: they arrive at the other end."""
    pair.bfd(enable=False)
    wait_until(lambda: pair.status("forwarding") == "false", "BFD to be down", timeout=10)
    select(pair, 3, to(PEER, watched=False))
    select(pair, 4, to(PEER, watched=True))
    second = pair.second.mgmt(BRIDGE)
    pair.second.ofctl("add-flow", second, "table=0,priority=50000,icmp,nw_dst=10.2.0.1,actions=drop")

    def arrived() -> int:
        text = pair.second.ofctl("dump-flows", second, "table=0,icmp,nw_dst=10.2.0.1")
        return sum(map(int, re.findall(r"n_packets=(\d+)", text)))

    def send(group: int) -> None:
        pair.first.ofctl("mod-flows", pair.first.mgmt(BRIDGE), f"table=0,actions=group:{group}")
        ping = ["ping", "-n", "-q", "-c", "3", "-i", "0.05", "-W", "1", "10.2.0.1"]
        netns.execute(pair.first.namespace, ping, check=False)

    def reaches() -> bool:  # the first packets may wait for the peer's MAC address
        send(3)
        return arrived() > 0

    wait_until(reaches, "the packet at the other end", timeout=20)
    assert pair.ways(4) == {0}
    before = arrived()
    send(4)
    assert arrived() == before


@pytest.mark.timing
def test_path_down_is_heard_within_one_interval(pair: Pair) -> None:
    """A peer that drains (`cpath_down`) is left at once (the tools here take longer), and taken back."""
    select(pair, 5, to(PEER, watched=True), to(SILENT, watched=False))
    assert PEER in pair.ways(5)
    began = time.monotonic()
    pair.bfd(cpath_down=True)
    wait_until(lambda: pair.status("forwarding") == "false" or pair.ways(5, 4) == {SILENT}, "the drain", timeout=5)
    assert time.monotonic() - began < allowed(3.0)
    assert pair.ways(5) == {SILENT}
    assert (pair.status("state"), pair.status("remote_diagnostic")) == ("up", "Concatenated Path Down")
    pair.bfd(cpath_down=False)
    wait_until(lambda: PEER in pair.ways(5), "the return", timeout=5)


@pytest.mark.timing
def test_reserves_by_nested_groups(pair: Pair) -> None:
    """A fast-failover group over two select groups: the second one only while nothing in the first is live."""
    select(pair, 6, to(SILENT, watched=True))
    select(pair, 7, to(PEER, watched=True))
    first = pair.first.mgmt(BRIDGE)
    text = "group_id=8,type=ff," + ",".join(
        f"bucket=bucket_id={n},watch_group={g},actions=group:{g}" for n, g in enumerate((6, 7))
    )
    pair.first.ofctl("add-group", first, text)
    assert pair.ways(8) == {PEER}
    select(pair, 9, to(SILENT, watched=False))
    pair.first.ofctl("add-group", first, text.replace("group_id=8", "group_id=10").replace("6", "9"))
    assert pair.ways(10) == {SILENT}
