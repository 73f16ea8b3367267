"""The lab's namespaces and Open vSwitch instances do what the other tests rely on."""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from devtools.errors import LabError
from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from devtools.traffic import queues, traffic

pytestmark = pytest.mark.contract

ETH_P_ALL = 3


def test_a_function_called_in_a_namespace_sees_its_devices_and_no_others(fresh_namespace: str) -> None:
    """`call` enters the namespace for that function only."""
    outside = {name for _, name in socket.if_nameindex()}
    netns.ip(fresh_namespace, "link", "add", "mct-dummy", "type", "veth", "peer", "name", "mct-peer")
    inside = netns.call(fresh_namespace, lambda: {name for _, name in socket.if_nameindex()})
    assert {"lo", "mct-dummy", "mct-peer"} <= inside
    assert not {"mct-dummy", "mct-peer"} & outside
    assert {name for _, name in socket.if_nameindex()} == outside


def test_an_error_in_a_called_function_reaches_the_caller(fresh_namespace: str) -> None:
    """`call` raises what the function raised."""

    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        netns.call(fresh_namespace, fail)


def test_a_failing_command_is_told_in_its_own_words(fresh_namespace: str) -> None:
    """LabError carries what the command said."""
    with pytest.raises(LabError, match="Cannot find device"):
        netns.ip(fresh_namespace, "link", "set", "nosuch", "up")


def test_veth_pairs_join_two_namespaces(fresh_namespace: str, namespace: str) -> None:
    """Two namespaces with a veth pair reach each other."""
    netns.add_veth("mct0", fresh_namespace, "mct1", namespace)
    netns.add_address(fresh_namespace, "mct0", "192.0.2.1/24")
    netns.add_address(namespace, "mct1", "192.0.2.2/24")
    done = netns.execute(fresh_namespace, ["ping", "-c1", "-w5", "192.0.2.2"])
    assert " 0% packet loss" in done.stdout


@pytest.mark.parametrize("closes", [True, False], ids=["closes", "is silent"])
def test_a_failed_client_closes_its_socket(fresh_namespace: str, closes: bool) -> None:
    """pytest fails a test that leaves a socket to the garbage collector: here, or whichever runs then."""
    with netns.call(fresh_namespace, lambda: socket.create_server(("127.0.0.1", 0))) as server:

        def accept_and_close() -> None:
            server.accept()[0].close()

        accepted = threading.Thread(target=accept_and_close)
        if closes:
            accepted.start()
        with pytest.raises(LabError, match="closed at once" if closes else "timed out"):
            traffic.TcpClient(fresh_namespace, "127.0.0.1", server.getsockname()[1], timeout=1.0)
        if closes:
            accepted.join()
    gc.collect()
    with pytest.raises(OSError, match="unreachable"):
        traffic.udp(fresh_namespace, "203.0.113.1", 9, b"no route")
    gc.collect()


def test_ovs_survives_a_crash_of_vswitchd_and_ends_when_told(fresh_ovs: OvsInstance) -> None:
    """The daemon comes back under a new pid with the same database, and stop leaves none."""
    fresh_ovs.vsctl("add-br", "br-t", "--", "set", "bridge", "br-t", "datapath_type=netdev")
    before = fresh_ovs.pids
    fresh_ovs.kill_vswitchd()
    assert set(fresh_ovs.pids) == {"ovsdb-server"}
    fresh_ovs.start_vswitchd()
    after = fresh_ovs.pids
    assert after["ovsdb-server"] == before["ovsdb-server"]
    assert after["ovs-vswitchd"] != before["ovs-vswitchd"]
    assert "br-t" in fresh_ovs.appctl("ofproto/list")
    assert "actions" in fresh_ovs.ofctl("dump-flows", fresh_ovs.mgmt("br-t"))
    fresh_ovs.stop()
    assert fresh_ovs.pids == {}
    assert not any(Path(f"/proc/{pid}/cmdline").exists() and _cmdline(pid) for pid in after.values())


def test_a_killed_vswitchd_has_gone_only_when_the_next_can_have_its_pid_file(fresh_ovs: OvsInstance) -> None:
    """Whenever `kill_vswitchd` returns, nobody holds the lock of the pid file: the next one would not start."""
    for _ in range(10):
        kept = (fresh_ovs.directory / "ovs-vswitchd.pid").open("r+")
        fresh_ovs.kill_vswitchd()
        with kept:
            fcntl.lockf(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fresh_ovs.start_vswitchd()


def _cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_path_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    """A directory in which sockets could not be opened is told at once."""
    with pytest.raises(LabError, match="too long"):
        OvsInstance("", tmp_path / ("x" * 120))


def test_what_a_full_queue_dropped_is_counted_by_socket(fresh_namespace: str) -> None:
    """A packet socket that nobody reads drops what does not fit; one that came later begins anew."""

    def flood() -> tuple[dict[str, int], dict[str, int]]:
        with (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock,
            socket.socket(type=socket.SOCK_DGRAM) as sender,
        ):
            sock.bind(("lo", ETH_P_ALL))
            begin = queues.of_namespace(fresh_namespace)
            for _ in range(2000):
                sender.sendto(b"x" * 100, ("127.0.0.1", 9))
            return begin, queues.of_namespace(fresh_namespace)

    netns.ip(fresh_namespace, "link", "set", "lo", "up")
    (begin, end), (_, again) = (netns.call(fresh_namespace, flood) for _ in range(2))
    (cookie,) = begin
    assert begin[cookie] == 0
    assert end[cookie] > 1000, "208 KiB do not hold 4,000 packets"
    before, now = ({("here", sock): number for sock, number in counter.items()} for counter in (end, again))
    assert queues.since(before, now) == {"here": sum(again.values())}
    assert queues.since(now, now) == {}


def test_ovs_appctl_finds_the_daemons(ovs: OvsInstance) -> None:
    """As a user types it in a Node of a lab (`devtools/mclab exec NODE -- ovs-appctl version`)."""
    for target in ("ovs-vswitchd", "ovsdb-server"):
        environment = {**os.environ, **ovs.environment}
        done = subprocess.run(
            ["ovs-appctl", "-t", target, "version"], env=environment, capture_output=True, text=True, check=True
        )
        assert target in done.stdout
