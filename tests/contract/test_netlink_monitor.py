"""The monitor against the kernel: what wakes the loop, and what does not."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from devtools.nodes import netns
from mcagent.dataplane.netlink import connection
from mcagent.dataplane.netlink.backend import NetlinkBackend
from mcagent.dataplane.netlink.watch import NetlinkMonitor
from mcagent.model.dataplane.resources import Link, LinkAddress, Neighbour, Resource, Route, Rule
from tests.contract.inside import Inside, adds, make

pytestmark = pytest.mark.contract

DEVICE, TABLE, PROTOCOL = "mc-gw0", 28003, 111
NEXT_HOP = ip_address("169.254.77.2")
ADDRESS_GENERATION = Path("/proc/sys/net/ipv6/conf/default/addr_gen_mode")
WAKE_WITHIN = 5.0  # seconds; it takes a few milliseconds

Woken = threading.Event


def settle(woken: Woken) -> None:
    """Return when nothing has woken for a while: earlier changes have been told."""
    while woken.wait(0.2):
        woken.clear()


def no_addresses_by_themselves() -> None:
    """Let devices made from now on get no IPv6 link-local address: it is confirmed, and told, up to 2 s later."""
    if ADDRESS_GENERATION.exists():
        ADDRESS_GENERATION.write_text("1")  # IN6_ADDR_GEN_MODE_NONE of linux/if_link.h


@pytest.fixture
def node(fresh_namespace: str) -> str:
    """Give a namespace with an uplink, a Pod's device, and everything of ours in place."""
    netns.call(fresh_namespace, no_addresses_by_themselves)
    netns.add_veth("uplink", fresh_namespace, "underlay", fresh_namespace)
    netns.add_veth("pod0", fresh_namespace, "pod1", fresh_namespace)
    netns.add_veth(DEVICE, fresh_namespace, "bridge", fresh_namespace)
    netns.add_address(fresh_namespace, "uplink", "192.0.2.10/24")
    resources: list[Resource] = [
        Link(name=DEVICE, mtu=1450),
        LinkAddress(device=DEVICE, address=ip_address("169.254.77.1"), prefixlen=32),
        Neighbour(device=DEVICE, address=NEXT_HOP, mac="aa:bb:cc:dd:ee:f0"),
        Route(table=TABLE, destination=ip_network("10.20.0.0/16"), device=DEVICE, via=NEXT_HOP),
        Rule(priority=300, table=TABLE),
    ]
    backend = Inside(
        fresh_namespace,
        NetlinkBackend(route_tables=(TABLE,), route_protocol=PROTOCOL, devices=(DEVICE,)),
    )
    make(backend, resources)
    backend.close()
    netns.execute(fresh_namespace, ["nft", "-f", "-"], stdin="add table ip mcagent\nadd table ip other\n")
    return fresh_namespace


@pytest.fixture
def watch(node: str) -> Iterator[Callable[[], Woken]]:
    """Give a function that starts a monitor and returns the event it sets, with nothing pending."""
    monitors: list[NetlinkMonitor] = []

    def start() -> Woken:
        woken = threading.Event()
        monitor = NetlinkMonitor(
            woken.set, route_tables=(TABLE,), route_protocol=PROTOCOL, devices=(DEVICE,), nft_table="mcagent"
        )
        netns.call(node, monitor.start)
        monitors.append(monitor)
        settle(woken)
        return woken

    yield start
    for monitor in monitors:
        monitor.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "netlink-monitor"]


@pytest.mark.parametrize(
    "change",
    [
        f"ip link set {DEVICE} down",
        f"ip link set {DEVICE} mtu 1300",
        f"ip link delete {DEVICE}",
        f"sysctl -qw net.ipv4.conf.{DEVICE}.forwarding=0",
        f"sysctl -qw net.ipv4.conf.{DEVICE}.rp_filter=1",
        f"ip route delete 10.20.0.0/16 table {TABLE}",
        f"ip route add throw 10.21.0.0/16 table {TABLE} proto {PROTOCOL}",
        f"ip route add throw 10.21.0.0/16 table {TABLE} proto static",
        f"ip -6 route add throw fd00::/16 table {TABLE} proto {PROTOCOL}",
        "ip route add 10.30.0.0/16 via 192.0.2.1",
        "ip route add 10.30.0.7/32 via 192.0.2.1 proto static",
        f"ip rule delete priority 300 table {TABLE}",
        f"ip neigh delete {NEXT_HOP} dev {DEVICE}",
        f"ip address delete 169.254.77.1/32 dev {DEVICE}",
        "ip link set uplink mtu 1400",
        "ip address add 192.0.2.11/24 dev uplink",
        "ip address add 172.16.0.1/16 dev pod0",
        "nft add chain ip mcagent mct_new",
        "nft delete table ip mcagent",
        "nft flush ruleset",
    ],
)
def test_a_change_of_what_is_ours_or_of_the_facts_wakes(
    node: str, watch: Callable[[], Woken], change: str
) -> None:
    """Whatever a full observation would see differently is told."""
    woken = watch()
    netns.execute(node, change.split())
    assert woken.wait(WAKE_WITHIN)


def test_a_device_made_anew_is_watched_as_the_first_was(node: str, watch: Callable[[], Woken]) -> None:
    """After OVSDB made the host port again, changes on the new one wake too."""
    woken = watch()
    netns.ip(node, "link", "delete", DEVICE)
    settle(woken)
    netns.add_veth(DEVICE, node, "bridge", node)
    assert woken.wait(WAKE_WITHIN)
    settle(woken)
    netns.ip(node, "neigh", "add", str(NEXT_HOP), "lladdr", "aa:bb:cc:dd:ee:f0", "dev", DEVICE)
    assert woken.wait(WAKE_WITHIN)


def test_foreign_changes_do_not_wake_and_cost_little(node: str, watch: Callable[[], Woken]) -> None:
    """5,000 routes of a routing daemon, Pods that come, other tables of nft: the loop sleeps on."""
    woken = watch()
    before = time.process_time()
    netns.ip_batch(node, [f"route add 10.{n // 256}.{n % 256}.0/24 via 192.0.2.1 proto bird" for n in range(5000)])
    netns.ip_batch(node, [f"route add throw 10.{n}.0.0/16 table 500 proto bird" for n in range(200)])
    netns.ip_batch(node, [f"route add 10.250.0.{n}/32 dev pod0 scope link" for n in range(200)])
    netns.ip(node, "rule", "add", "priority", "250", "table", "77")
    netns.ip(node, "neigh", "add", "192.0.2.77", "lladdr", "02:00:00:00:00:77", "dev", "uplink")
    netns.ip(node, "link", "set", "pod0", "mtu", "1300")
    netns.add_veth("pod2", node, "pod3", node)
    netns.execute(
        node, ["nft", "-f", "-"], stdin="add chain ip other mcagent\nadd set ip other s { type mark; }\n"
    )
    assert not woken.wait(0.5)
    spent = time.process_time() - before
    assert spent < 1.0, f"{spent:.2f} s of processor time for events that are not ours"


def test_lost_events_wake_for_a_full_observation_and_watching_goes_on(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOBUFS, which a reader gets that was too slow, leads to new sockets and a wake; later changes wake too."""
    monkeypatch.setattr(connection, "EVENT_BUFFER", 4096)
    opened: list[list[socket.socket]] = []
    event, go_on, woken = threading.Event(), threading.Event(), threading.Event()

    def wake() -> None:
        if not event.is_set():  # hold the thread up once, so that the buffer runs over meanwhile
            event.set()
            go_on.wait(30)
        else:
            woken.set()

    monitor = NetlinkMonitor(wake, route_tables=(TABLE,), route_protocol=PROTOCOL, devices=(DEVICE,))
    original = monitor._open

    def recorded() -> list[socket.socket]:
        opened.append(original())
        return opened[-1]

    monkeypatch.setattr(monitor, "_open", recorded)
    netns.call(node, monitor.start)
    try:
        netns.ip(node, "route", "add", "throw", "10.99.0.0/16", "table", str(TABLE))
        assert event.wait(WAKE_WITHIN)
        netns.ip_batch(node, [f"route add throw 11.{n}.0.0/16 table {TABLE}" for n in range(200)])
        go_on.set()
        assert woken.wait(WAKE_WITHIN)
        settle(woken)
        assert len(opened) >= 2, "the buffer was large enough for all: the test shows nothing"
        netns.ip(node, "route", "delete", "10.20.0.0/16", "table", str(TABLE))
        assert woken.wait(WAKE_WITHIN)
    finally:
        go_on.set()
        monitor.stop()
    assert all(sock.fileno() == -1 for sockets in opened for sock in sockets), "a socket was left open"


def test_after_any_other_error_watching_begins_anew(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets that fail are replaced after a while, and a full observation follows; later changes wake too."""
    woken = threading.Event()
    monitor = NetlinkMonitor(woken.set, route_tables=(TABLE,), route_protocol=PROTOCOL, devices=(DEVICE,))
    opened: list[list[socket.socket]] = []
    watch = monitor._watch

    def fail_once(sockets: list[socket.socket]) -> None:
        opened.append(sockets)
        if len(opened) == 1:
            raise OSError(errno.EBADF, "bad descriptor")
        watch(sockets)

    monkeypatch.setattr(monitor, "_watch", fail_once)
    netns.call(node, monitor.start)
    try:
        assert woken.wait(WAKE_WITHIN)
        settle(woken)
        netns.ip(node, "route", "delete", "10.20.0.0/16", "table", str(TABLE))
        assert woken.wait(WAKE_WITHIN)
    finally:
        monitor.stop()
    assert len(opened) == 2
    assert all(sock.fileno() == -1 for sockets in opened for sock in sockets), "a socket was left open"


def test_own_changes_of_routes_do_not_wake_and_those_of_others_do(node: str) -> None:
    """What the backend itself does is no news; the same route taken away by somebody is."""
    backend = NetlinkBackend(route_tables=(TABLE,), route_protocol=PROTOCOL, devices=(DEVICE,))
    inside = Inside(node, backend)
    woken = threading.Event()
    monitor = NetlinkMonitor(
        woken.set,
        route_tables=(TABLE,),
        route_protocol=PROTOCOL,
        devices=(DEVICE,),
        own_port=lambda: backend.port,
    )
    netns.call(node, monitor.start)
    try:
        settle(woken)
        route = Route(table=TABLE, destination=ip_network("10.99.0.0/16"), device=DEVICE, via=NEXT_HOP)
        assert not inside.apply(adds(route)).failed
        assert not woken.wait(0.5)
        netns.ip(node, "route", "delete", "10.99.0.0/16", "table", str(TABLE))
        assert woken.wait(WAKE_WITHIN)
    finally:
        monitor.stop()
        backend.close()
