"""The OVSDB backend against a real Open vSwitch in a namespace."""

from __future__ import annotations

import json
import shlex
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from mcagent.dataplane.ovsdb.backend import OvsdbBackend
from mcagent.model.dataplane.resources import BFD_MAC, PeerKind, Resource, TunnelType
from mcagent.model.errors import BackendError
from mcagent.model.plan import Step
from tests.contract.inside import adds, as_mapping, make, steps_to
from tests.contract.ovs_values import BFD, BRIDGE, DATAPATH, HOST_PORT, tunnel
from tests.contract.suite import BackendContract, Case

pytestmark = pytest.mark.contract

UNIT = Path(__file__).parents[2] / "systemd" / "mcagent-path-down.service"


@pytest.fixture
def backend(ovs: OvsInstance) -> Iterator[OvsdbBackend]:
    """Give a backend on the module's Open vSwitch, which is emptied afterwards."""
    backend = OvsdbBackend(ovs.socket)
    yield backend
    backend.close()
    if "ovsdb-server" not in ovs.pids:
        ovs.start_ovsdb()
    for bridge in ovs.vsctl("list-br").split():
        ovs.vsctl("del-br", bridge)


def columns(ovs: OvsInstance, table: str, record: str, *names: str) -> list[str]:
    """Return columns of a row as ovs-vsctl prints them."""
    return ovs.vsctl("get", table, record, *names).splitlines()


class TestOvsdb(BackendContract):
    """The contract, with others' bridges and ports about."""

    @pytest.fixture
    def case(self, backend: OvsdbBackend, ovs: OvsInstance) -> Case:
        def add_foreign() -> None:
            ovs.vsctl("add-br", "br-other", "--", "set", "bridge", "br-other", f"datapath_type={DATAPATH}")
            ovs.vsctl("add-port", "br-other", "taken", "--", "set", "interface", "taken", "type=internal")
            ovs.vsctl("add-port", "br-mc", "theirs", "--", "set", "interface", "theirs", "type=internal")

        def foreign() -> object:
            names = ("type", "options", "external_ids", "mac", "bfd", "_uuid")
            return [columns(ovs, "interface", name, *names) for name in ("br-other", "taken", "theirs")]

        return Case(
            backend=backend,
            base=(BRIDGE,),
            pool=(
                HOST_PORT,
                tunnel(2),
                tunnel(3, type=TunnelType.VXLAN),
                tunnel(4, bfd=BFD),
                tunnel(5, dst_port=7000, peer_kind=PeerKind.GATEWAY, peer="node-1"),
                tunnel(6, remote_ip=ip_address("2001:db8::6"), local_ip=ip_address("2001:db8::1"), ttl=255),
                tunnel(2, ofport=9, peer_kind=PeerKind.NODE),
                tunnel(3, type=TunnelType.VXLAN, local_ip=ip_address("192.0.2.77"), ttl=255),
                tunnel(4, bfd=replace(BFD, min_tx=100, cpath_down=False), bfd_seen=True),
                tunnel(4, bfd=BFD, egress_mark=32),
                tunnel(3, type=TunnelType.VXLAN, egress_mark=32),
                replace(HOST_PORT, mac="0a:6d:63:00:00:02"),
            ),
            refused=tunnel(7, remote_ip=ip_address("224.0.0.7")),  # "multicast remote_ip not allowed"
            add_foreign=add_foreign,
            foreign=foreign,
            break_facility=ovs.stop_ovsdb,
        )


def test_the_bridge_forwards_nothing_that_was_not_programmed(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """Fail mode secure, no learning, no controller, OpenFlow 1.3 and 1.5, and not one flow."""
    make(backend, [BRIDGE, HOST_PORT])
    assert columns(ovs, "bridge", "br-mc", "fail_mode", "controller", "stp_enable", "protocols") == [
        "secure",
        "[]",
        "false",
        "[OpenFlow13, OpenFlow15]",
    ]
    assert ovs.ofctl("dump-flows", ovs.mgmt("br-mc"), "--no-stats").strip().count("\n") == 0


def test_the_host_port_is_there_when_apply_returns(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """What comes next configures the device, so it must exist, with its MAC address."""
    make(backend, [BRIDGE, HOST_PORT])
    assert HOST_PORT.mac in netns.ip(ovs.namespace, "link", "show", "mc-gw0")


def test_a_tunnel_of_an_earlier_version_is_taught_in_place(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """It learns by which MAC to know BFD, and stays the very same port."""
    make(backend, [BRIDGE, HOST_PORT, tunnel(4, bfd=replace(BFD, destination_mac=""))])
    before = columns(ovs, "interface", tunnel(4).name, "_uuid", "ofport")
    assert "bfd_remote_dst_mac" not in columns(ovs, "interface", tunnel(4).name, "bfd")[0]
    make(backend, [BRIDGE, HOST_PORT, tunnel(4, bfd=BFD)])
    assert columns(ovs, "interface", tunnel(4).name, "_uuid", "ofport") == before
    assert f'bfd_remote_dst_mac="{BFD_MAC}"' in columns(ovs, "interface", tunnel(4).name, "bfd")[0]


def test_a_mark_is_changed_on_the_port_that_is_there(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """One step on the same row: the tunnel is not made anew."""
    make(backend, [BRIDGE, HOST_PORT, tunnel(4, bfd=BFD)])
    before = columns(ovs, "interface", tunnel(4).name, "_uuid", "ofport")
    for mark in (32, 33, 0):
        result = make(backend, [BRIDGE, HOST_PORT, tunnel(4, bfd=BFD, egress_mark=mark)])
        assert [step.key for step in result.done] == [tunnel(4).key]
        assert columns(ovs, "interface", tunnel(4).name, "_uuid", "ofport") == before
        shown = "egress_pkt_mark" in columns(ovs, "interface", tunnel(4).name, "options")[0]
        assert shown == bool(mark)


def test_the_order_of_gateways_is_kept_in_the_bridge(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """It is written, changed and taken away; what others keep there, and the bridge itself, stay."""
    make(backend, [BRIDGE])
    ovs.vsctl("set", "bridge", "br-mc", "external_ids:theirs=1")
    uuid = columns(ovs, "bridge", "br-mc", "_uuid")
    for order in (("node-2", "node-1", "10.0.0.7"), ("10.0.0.7",), ()):
        observed_bridge = as_mapping([replace(BRIDGE, active_order=order)])
        assert not backend.apply(steps_to(backend.observe(), list(observed_bridge.values()))).failed
        assert backend.observe() == observed_bridge
        assert columns(ovs, "bridge", "br-mc", "external_ids:theirs", "_uuid") == ['"1"', *uuid]


def test_a_foreign_bridge_of_our_name_is_refused_and_kept(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """Nothing is adopted: the administrator has to decide."""
    ovs.vsctl("add-br", "br-mc", "--", "set", "bridge", "br-mc", f"datapath_type={DATAPATH}")
    before = columns(ovs, "bridge", "br-mc", "_uuid", "fail_mode", "other_config", "external_ids", "ports")
    assert backend.observe() == {}
    result = backend.apply(adds(BRIDGE, HOST_PORT, tunnel(2)))
    assert result.done == ()
    assert all("br-mc is not ours" in str(error) and not error.retryable for _, error in result.failed)
    removal = Step(old=BRIDGE)
    assert "not ours" in str(backend.apply([removal]).failed[0][1])
    assert before == columns(ovs, "bridge", "br-mc", "_uuid", "fail_mode", "other_config", "external_ids", "ports")


def test_a_foreign_port_of_our_name_is_refused_and_kept(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """A port that does not carry our tag is nobody's to overwrite."""
    make(backend, [BRIDGE])
    ovs.vsctl("add-port", "br-mc", tunnel(2).name, "--", "set", "interface", tunnel(2).name, "type=internal")
    assert backend.observe() == as_mapping([BRIDGE])
    result = backend.apply(adds(tunnel(2), tunnel(3)))
    assert [step.key for step, _ in result.failed] == [tunnel(2).key]
    assert tunnel(2).name in str(result.failed[0][1])
    assert columns(ovs, "interface", tunnel(2).name, "type") == ["internal"]


def test_a_bridge_with_others_ports_is_not_removed(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """Removing it would take their ports along."""
    make(backend, [BRIDGE])
    ovs.vsctl("add-port", "br-mc", "theirs", "--", "set", "interface", "theirs", "type=internal")
    result = backend.apply(steps_to(backend.observe(), []))
    assert "theirs" in str(result.failed[0][1])
    assert "br-mc" in ovs.vsctl("list-br").split()


DISTURBANCES = {
    "fail mode": ("set", "bridge", "br-mc", "fail_mode=standalone"),
    "controller": ("set-controller", "br-mc", "ptcp:6653:127.0.0.1"),
    "host port's MAC": ("set", "interface", "mc-gw0", 'mac="0a:6d:63:00:00:09"'),
    "tunnel's key": ("set", "interface", tunnel(2).name, "options:key=7"),
    "tunnel's address": ("set", "interface", tunnel(2).name, "options:remote_ip=bad"),
    "tunnel's own end": ("set", "interface", tunnel(2).name, "options:local_ip=bad"),
    "tunnel's TTL": ("set", "interface", tunnel(2).name, "options:ttl=bad"),
    "tunnel's mark": ("set", "interface", tunnel(2).name, "options:egress_pkt_mark=32"),
    "tunnel's wrong mark": ("set", "interface", tunnel(2).name, "options:egress_pkt_mark=bad"),
    "tunnel's BFD": ("set", "interface", tunnel(2).name, "bfd:min_tx=7"),
    "tunnel's number": ("set", "interface", tunnel(2).name, "ofport_request=77"),
    "tag of the port": ("clear", "port", tunnel(2).name, "external_ids"),
    "tag of the interface": ("clear", "interface", tunnel(2).name, "external_ids"),
    "a tunnel gone": ("del-port", "br-mc", tunnel(2).name),
    "the bridge gone": ("del-br", "br-mc"),
}


def watched(backend: OvsdbBackend, resources: list[Resource]) -> threading.Event:
    """Create resources; return an event that the next change of the database sets."""
    make(backend, resources)
    woken = threading.Event()
    backend.watch(woken.set)
    wait_until(woken.is_set, "the first message of the connection")
    assert backend.observe() == as_mapping(resources)
    woken.clear()
    return woken


@pytest.mark.parametrize("command", DISTURBANCES.values(), ids=DISTURBANCES.keys())
def test_what_somebody_changed_is_noticed_and_put_right(
    backend: OvsdbBackend, ovs: OvsInstance, command: tuple[str, ...]
) -> None:
    """Every change shows as something to do, wakes who watches, and doing it leads back."""
    resources: list[Resource] = [BRIDGE, HOST_PORT, tunnel(2, bfd=BFD), tunnel(3)]
    woken = watched(backend, resources)
    ovs.vsctl(*command)
    wait_until(woken.is_set, "word of the change", timeout=2)
    assert backend.observe() != as_mapping(resources)
    make(backend, resources)
    assert backend.observe() == as_mapping(resources)


def test_a_host_port_whose_device_was_deleted_gets_another_one(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """Other programs can delete that of the userspace datapath. The rows of the database stay then."""
    resources: list[Resource] = [BRIDGE, HOST_PORT, tunnel(2)]
    woken = watched(backend, resources)
    netns.ip(ovs.namespace, "link", "delete", HOST_PORT.name)
    wait_until(woken.is_set, "word of the change", timeout=5)
    assert [step.key for step in make(backend, resources).done] == [HOST_PORT.key]
    assert HOST_PORT.mac in netns.ip(ovs.namespace, "link", "show", HOST_PORT.name)
    assert backend.observe() == as_mapping(resources)


def test_own_changes_wake_nobody(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """The loop is not woken by what it did itself; the next change by somebody else still is heard."""
    make(backend, [BRIDGE, HOST_PORT])
    heard: list[str] = []
    backend.watch(lambda: heard.append("changed"))
    wait_until(lambda: heard, "first word of the connection")
    backend.observe()
    heard.clear()
    for number in range(2, 6):
        make(backend, [BRIDGE, HOST_PORT, tunnel(number)])
    backend.apply(steps_to(backend.observe(), [BRIDGE, HOST_PORT]))
    ovs.vsctl("add-br", "br-other", "--", "set", "bridge", "br-other", f"datapath_type={DATAPATH}")
    assert heard == []
    ovs.vsctl("set", "bridge", "br-mc", "fail_mode=standalone")
    wait_until(lambda: heard, "word of the change")


def test_numbers_in_use_are_known_others_included(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """Core gives no number that somebody has."""
    make(backend, [BRIDGE, HOST_PORT, tunnel(2)])
    ovs.vsctl(
        *("add-port", "br-mc", "theirs", "--", "set", "interface", "theirs", "type=internal", "ofport_request=40")
    )
    numbers = backend.ofports()
    assert numbers.items() >= {"mc-gw0": 1, tunnel(2).name: 2, "theirs": 40}.items()


def test_statistics_are_those_of_our_ports(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """Counters come by port; ports of others are left out."""
    make(backend, [BRIDGE, HOST_PORT, tunnel(2, bfd=BFD), tunnel(3)])
    ovs.vsctl("add-port", "br-mc", "theirs", "--", "set", "interface", "theirs", "type=internal")
    ovs.vsctl("set", "Open_vSwitch", ".", "other_config:stats-update-interval=1000")
    flow = f"in_port=LOCAL,actions=output:{tunnel(2).ofport}"
    ovs.ofctl("add-flow", ovs.mgmt("br-mc"), flow)
    wait_until(lambda: backend.statistics()[tunnel(2).name].link_up, "the tunnel to be up")
    assert set(backend.statistics()) == {"mc-gw0", tunnel(2).name, tunnel(3).name}
    netns.ip(ovs.namespace, "link", "set", "mc-gw0", "up")
    netns.ip(ovs.namespace, "address", "add", "192.0.2.1/24", "dev", "mc-gw0")
    netns.execute(ovs.namespace, ["ping", "-c2", "-i0.2", "-W1", "192.0.2.9"], check=False)
    wait_until(lambda: host_port_packets(backend) > 0, "the host port's counters")


def host_port_packets(backend: OvsdbBackend) -> int:
    """Return packets of either direction: which one is "received" depends on the datapath."""
    counters = backend.statistics()["mc-gw0"].counters
    return counters.get("rx_packets", 0) + counters.get("tx_packets", 0)


def test_the_backend_works_again_when_ovsdb_server_is_back(fresh_ovs: OvsInstance) -> None:
    """The outage is told with the socket's path, its end wakes the loop, and the world is as it was."""
    backend = OvsdbBackend(fresh_ovs.socket)
    try:
        resources: list[Resource] = [BRIDGE, HOST_PORT, tunnel(2)]
        make(backend, resources)
        heard: list[bool] = []
        backend.watch(lambda: heard.append(True))
        wait_until(lambda: heard, "first word of the connection")
        backend.observe()
        heard.clear()
        fresh_ovs.stop_ovsdb()
        wait_until(lambda: heard, "word of the outage")
        with pytest.raises(BackendError, match=fresh_ovs.socket):
            backend.observe()
        heard.clear()
        fresh_ovs.start_ovsdb()
        wait_until(lambda: heard, "word of its end", timeout=5)
        assert backend.observe() == as_mapping(resources)
        make(backend, [*resources, tunnel(3)])
    finally:
        backend.close()


def test_steps_that_vswitchd_does_not_take_are_reported(
    fresh_ovs: OvsInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ovs-vswitchd down the database is written, and every step says that nothing has come of it."""
    backend = OvsdbBackend(fresh_ovs.socket)
    try:
        make(backend, [BRIDGE])
        fresh_ovs.kill_vswitchd()
        monkeypatch.setattr("mcagent.dataplane.ovsdb.backend.CONFIGURE_TIMEOUT", 0.2)
        result = backend.apply(adds(HOST_PORT, tunnel(2)))
        assert [str(error).count("ovs-vswitchd did not apply it") for _, error in result.failed] == [1, 1]
        fresh_ovs.start_vswitchd()
        wait_until(lambda: backend.ofports().get(tunnel(2).name) == 2, "the port's number")
        assert backend.observe() == as_mapping([BRIDGE, HOST_PORT, tunnel(2)])
    finally:
        backend.close()


def test_a_socket_that_is_none_is_told(tmp_path: object) -> None:
    """A wrong path is named at the first use, not retried in silence."""
    backend = OvsdbBackend(f"unix:{tmp_path}/nothing.sock")
    with pytest.raises(BackendError, match=r"nothing\.sock: No such file"):
        backend.observe()
    backend.close()


def test_what_bfd_says_is_an_event(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """A change of bfd_status is told at once, as a matter of liveness and not as somebody's change of ours."""
    port = tunnel(4, bfd=BFD)
    make(backend, [BRIDGE, port])
    backend.observe()
    heard: list[str] = []
    backend.watch(lambda: heard.append("changed"), lambda: heard.append("live"))
    wait_until(lambda: [status.get("state") for _, status in backend.liveness().tunnels] == ["down"], "BFD")
    same = backend.liveness()
    assert backend.liveness() is same
    assert same.tunnels[0][0] == port
    heard.clear()
    ovs.vsctl("--no-wait", "set", "interface", port.name, "bfd_status:state=init")
    wait_until(lambda: backend.liveness().tunnels[0][1]["state"] == "init", "the event")
    wait_until(lambda: "live" in heard, "the call")
    assert "changed" not in heard


def test_the_drain_flag_is_kept_in_the_bridge(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """It is set without the agent, is heard as a matter of liveness, and survives what the agent writes."""
    with pytest.raises(BackendError, match="no such bridge"):
        backend.set_drain(True)
    make(backend, [BRIDGE])
    backend.observe()
    heard: list[str] = []
    backend.watch(lambda: heard.append("changed"), lambda: heard.append("live"))
    other = OvsdbBackend(ovs.socket)
    other.set_drain(True)
    wait_until(lambda: backend.liveness().drain, "the flag")
    wait_until(lambda: "live" in heard, "the call")
    assert backend.observe() == as_mapping([BRIDGE])
    other.set_drain(False)
    other.set_drain(False)
    wait_until(lambda: not backend.liveness().drain, "the flag to be gone")
    other.close()


def test_the_unit_before_vswitchd_lets_our_tunnels_say_path_down(backend: OvsdbBackend, ovs: OvsInstance) -> None:
    """One transaction (systemd/), on what is ours and speaks BFD; the agent finds it and takes it back."""
    up = replace(BFD, cpath_down=False)
    resources: list[Resource] = [BRIDGE, HOST_PORT, tunnel(2, bfd=up), tunnel(3)]
    make(backend, resources)
    foreign = ["type=geneve", "options:remote_ip=192.0.2.99", "options:key=7", "bfd:enable=true"]
    ovs.vsctl("add-port", BRIDGE.name, "theirs", "--", "set", "interface", "theirs", *foreign)
    (line,) = [one for one in UNIT.read_text().splitlines() if one.startswith("ExecStart=")]
    argv = shlex.split(line.removeprefix("ExecStart=-").replace("unix:/run/openvswitch/db.sock", ovs.socket))
    argv[0] = shutil.which("ovsdb-client") or argv[0]
    assert json.loads(netns.run(argv).stdout) == [{"count": 1}]
    observed = backend.observe()
    down = replace(tunnel(2, bfd=up), bfd=replace(up, cpath_down=True))
    assert observed == as_mapping([BRIDGE, HOST_PORT, down, tunnel(3)])
    assert columns(ovs, "interface", "theirs", "bfd") == ['{enable="true"}']
    assert not backend.apply(steps_to(observed, resources)).failed
    assert backend.observe() == as_mapping(resources)
