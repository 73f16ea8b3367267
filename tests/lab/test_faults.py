"""Faults under traffic: what dies, lies or is taken away costs nothing that it need not, and is mended."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devtools.apiserver import GARBAGE
from devtools.lab import faults, objects
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cluster, generate
from devtools.nodes import netns
from devtools.traffic import traffic
from devtools.waiting import wait_until
from mcagent.model.dataplane.facts import DatapathType
from tests.waiting import allowed

pytestmark = pytest.mark.datapath

BRIDGE = "br-mc"
KILLS = 30
SEED = 1  # of random moments and Nodes
KILLS_IN_A_TEST_KERNEL = 12  # it starts an agent in three seconds

Dumps = dict[str, dict[str, object]]  # Node name to what is programmed there


@pytest.fixture(scope="module")
def shared(make_lab: Callable[..., Lab]) -> tuple[Lab, Dumps]:
    """Two clusters with two workers each, and what is programmed there once BFD is up everywhere."""
    lab = make_lab(generate(workers=2))
    faults.Settled(lab)
    return lab, _at_rest(lab)


def _at_rest(lab: Lab) -> Dumps:
    """Return what is programmed, as soon as it has not changed for a second: agents follow BFD with a delay."""
    dumps = all_dumps(lab)
    since = time.monotonic()
    deadline = since + 60

    while time.monotonic() < since + 1:
        assert time.monotonic() < deadline
        now = all_dumps(lab)
        if now != dumps:
            dumps, since = now, time.monotonic()
    return dumps


@pytest.fixture
def before(shared: tuple[Lab, Dumps]) -> Dumps:
    """What is programmed on every Node when nothing is wrong (see `dumps`)."""
    return shared[1]


@pytest.fixture
def lab(shared: tuple[Lab, Dumps]) -> Iterator[Lab]:
    """The shared lab, at rest and working before and after each test."""
    lab, other_nodes = shared
    wait_until(lambda: all_dumps(lab) == other_nodes, "everything as it was", timeout=60, interval=0.2)
    assert_works(lab)
    yield lab
    for cluster in lab.topology.clusters:  # a test that failed may have left it so
        process = lab.state.process(f"api-{cluster.name}")
        if process is None or not process.alive:
            lab.start_api(cluster)
        lab.api(cluster.name).clear_faults()
    lab.wait_ready()
    wait_until(lambda: _reaches(lab), "packets to pass", timeout=30)  # a new tunnel waits for BFD


def assert_works(lab: Lab) -> None:
    """Each worker's Pod reaches a Pod and a Service of the other cluster."""
    east, west = lab.topology.clusters
    for source, target in ((east, west), (west, east)):
        client = lab.namespace(source.workers[0].pods[0])
        assert traffic.udp(client, target.workers[0].pods[0].address, POD_PORT, b"x").pod
        assert traffic.tcp(client, target.services[0].cluster_ip, 80).pod


def stream(lab: Lab, rate: float = 200.0) -> traffic.UdpStream:
    """A stream from the first cluster's last worker to a Pod on the second's."""
    east, west = lab.topology.clusters
    return traffic.UdpStream(
        lab.namespace(east.workers[-1].pods[0]), west.workers[-1].pods[0].address, POD_PORT, rate=rate
    )


def service_stream(lab: Lab, rate: float = 100.0) -> traffic.UdpStream:
    """A stream to the exported Service."""
    east, west = lab.topology.clusters
    return traffic.UdpStream(lab.namespace(east.workers[0].pods[0]), west.services[0].cluster_ip, 80, rate=rate)


def result(stream: traffic.UdpStream) -> traffic.StreamResult:
    """What became of a stream that has ended."""
    assert stream.result is not None
    return stream.result


def dumps(lab: Lab, node: str) -> dict[str, object]:
    """Return what is programmed on a Node, without counters and times: for comparison."""
    ovs, namespace = lab.ovs(node), lab.namespace(node)
    flows = ovs.ofctl("--no-stats", "--no-names", "dump-flows", ovs.mgmt(BRIDGE))
    groups = ovs.ofctl("--no-names", "dump-groups", ovs.mgmt(BRIDGE))
    listing = netns.execute(namespace, ["nft", "-s", "list", "table", "ip", "mcagent"]).stdout
    nft = re.sub(r"\n\s*elements = \{[^}]*timeout[^}]*\}", "", listing)  # what the kernel learned, and forgets
    return {
        "flows": sorted(line.strip() for line in flows.splitlines()[1:]),
        "groups": sorted(line.strip() for line in groups.splitlines()[1:]),
        "ports": sorted(ovs.vsctl("list-ports", BRIDGE).split()),
        "routes": sorted(netns.ip(namespace, "route", "show", "table", "all", "proto", "111").splitlines()),
        "rules": netns.ip(namespace, "rule"),
        "device": re.sub(r"^\d+: |qlen \d+", "", netns.ip(namespace, "-o", "address", "show", "mc-gw0")),
        "neighbours": netns.ip(namespace, "neighbour", "show", "dev", "mc-gw0", "nud", "permanent"),
        # By chain and set: their order is that in which they were made, and means nothing.
        "nft": sorted(re.split(r"\n\n|(?<={)\n|\n}", nft)),
    }


def all_dumps(lab: Lab) -> Dumps:
    """`dumps` of every Node."""
    return {node.name: dumps(lab, node.name) for _, node in lab.topology.nodes()}


def readyz(lab: Lab, node: str) -> tuple[int, str]:
    """Status and text of /readyz."""
    return lab.http(node, "/readyz")


@pytest.mark.timing
def test_without_the_api_server_the_dataplane_stays_and_agents_catch_up(lab: Lab, before: Dumps) -> None:
    """/readyz tells that the API server is gone; no packet is lost; what changed meanwhile is programmed."""
    east, west = lab.topology.clusters
    with stream(lab) as packets:
        lab.stop_api(east.name)
        for node in east.nodes:
            wait_until(lambda node=node: readyz(lab, node.name)[0] == 503, f"{node.name} not ready", timeout=30)  # type: ignore[misc]
            assert "connected" in readyz(lab, node.name)[1]
            assert lab.http(node.name, "/healthz")[0] == 200
        assert all_dumps(lab) == before
        lab.start_api(east)
        _change_import(lab, east.name, west.name, [str(west.pod_cidr), "10.77.0.0/16"])
        lab.wait_ready()
        wait_until(
            lambda: _routed(lab, east.workers[0].name, "10.77.0.0/16"), "the change to be programmed", timeout=30
        )
    assert_none_lost(lab, result(packets))
    _restore_import(lab)
    assert all_dumps(lab) == before


def _routed(lab: Lab, node: str, cidr: str) -> bool:
    return cidr in netns.ip(lab.namespace(node), "route", "show", "table", "28003")


def _restore_import(lab: Lab) -> None:
    east, west = lab.topology.clusters
    raw = objects.import_object(west)
    lab.api(east.name).patch(
        "ClusterInfoImport", f"{west.name}-clusterinfo", {"spec": raw["spec"]}, objects.NAMESPACE
    )
    for node in east.nodes:
        wait_until(lambda node=node: not _routed(lab, node.name, "10.77.0.0/16"), "the change back", timeout=30)  # type: ignore[misc]
    lab.wait_ready()


WRONG_ANSWERS: list[dict[str, object]] = [
    {"kind": "status", "code": 503},
    {"kind": "drop"},
    {"kind": "truncated"},
    *[dict[str, object](kind="garbage", body=body) for body in GARBAGE],
]


@pytest.mark.timing
@pytest.mark.parametrize(
    "wrongs",
    [
        pytest.param([{**fault, "times": 1} for fault in WRONG_ANSWERS], id="wrong"),
        pytest.param([{"kind": "slow", "delay": 1.5, "times": 6}], id="slow"),
        pytest.param([{"kind": "silent", "times": 4}], id="silent"),
    ],
)
def test_an_api_server_that_lies_or_hangs_changes_nothing(
    lab: Lab, before: Dumps, wrongs: list[dict[str, object]], datapath: DatapathType
) -> None:
    """Lists and watches answered wrongly, slowly or not at all: the dataplane stays, and the agents catch up."""
    if datapath is not DatapathType.NETDEV:
        pytest.skip("how objects are read is the same on any datapath")
    east = lab.topology.clusters[0]
    api = lab.api(east.name)
    with stream(lab) as packets:
        for fault in wrongs:
            api.add_fault(**fault, verbs=["list", "watch"])
        api.drop_connections()
        wait_until(lambda: not _faults_left(lab), "every bad answer to be given", timeout=60)
        assert all_dumps(lab) == before
        for node in east.nodes:
            assert lab.http(node.name, "/healthz")[0] == 200
            assert lab.agent_alive(node.name)
        api.clear_faults()
        api.drop_connections()
        lab.wait_ready()
    assert all_dumps(lab) == before
    assert result(packets).lost == 0


def _faults_left(lab: Lab) -> object:
    return lab.api(lab.topology.clusters[0].name).request("GET", "/_admin/faults")[1]


@pytest.mark.timing
@pytest.mark.parametrize("role", ["worker", "gateway"])
@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM"])
def test_a_restarted_ovs_vswitchd_is_programmed_again_within_two_seconds(
    lab: Lab, role: str, signal_name: str
) -> None:
    """Flows and groups are gone with the process and back within 2 s of its return; nothing else changes."""
    east = lab.topology.clusters[0]
    node = (east.gateways if role == "gateway" else east.workers)[0]
    before = dumps(lab, node.name)
    lab.restart_vswitchd(node.name, kill=signal_name == "SIGKILL")
    begin = time.monotonic()
    wait_until(lambda: dumps(lab, node.name)["flows"] == before["flows"], "the flows to be back", timeout=20)
    seconds = time.monotonic() - begin
    lab.wait_ready()
    assert seconds < allowed(2.0)
    wait_until(lambda: _reaches(lab), "packets to pass again", timeout=10)
    wait_until(lambda: dumps(lab, node.name) == before, "all to be as before", timeout=60)  # BFD, damped


def _reaches(lab: Lab) -> bool:
    with contextlib.suppress(Exception):
        assert_works(lab)
        return True
    return False


@pytest.mark.timing
@pytest.mark.slow
def test_agents_killed_again_and_again_lose_no_packet(lab: Lab, before: Dumps) -> None:
    """SIGKILL at random moments, objects changing meanwhile: no packet is lost, and the end state is right."""
    east, west = lab.topology.clusters
    seed = int(os.environ.get("MCAGENT_TEST_SEED") or SEED)
    chance = random.Random(seed)
    print(f"MCAGENT_TEST_SEED={seed}")
    names = [node.name for _, node in lab.topology.nodes()]
    kills = KILLS if lab.userspace else KILLS_IN_A_TEST_KERNEL
    with stream(lab) as pods, service_stream(lab) as service:
        for number in range(kills):
            name = chance.choice(names)
            # There is something to do at the moment of the kill.
            for cluster in lab.topology.clusters:
                _toggle_export(lab, cluster)
            if number % 3 == 0 and not lab.userspace:
                extra = [] if number % 2 else [f"10.{200 + number}.0.0/16"]
                _change_import(lab, east.name, west.name, [str(west.pod_cidr), *extra])
            moment = time.monotonic() + chance.uniform(0.0, 1.5)
            wait_until(lambda moment=moment: time.monotonic() >= moment, "the moment", interval=0.005)  # type: ignore[misc]
            lab.stop_agent(name, kill=True)
            lab.start_agent(name)
        assert kills % 2 == 0  # the export is as it was
        lab.wait_ready()
        _change_import(lab, east.name, west.name, [str(west.pod_cidr)])
        for name in names:
            wait_until(lambda name=name: dumps(lab, name) == before[name], f"{name} to settle", timeout=60)  # type: ignore[misc]
    assert result(pods).lost == 0, result(pods)
    assert result(service).lost == 0, result(service)
    assert result(pods).duplicates == result(service).duplicates == 0
    for name in names:
        lab.mcagent(name, "plan", "--exit-code")
    assert all_dumps(lab) == before


def _toggle_export(lab: Lab, cluster: Cluster) -> None:
    """Export the private Service, or take its export back."""
    api, private = lab.api(cluster.name), cluster.services[1]
    if api.get("ServiceExport", private.name) is None:
        api.create(objects.export_object(private))
    else:
        api.delete("ServiceExport", private.name)


def assert_none_lost(lab: Lab, result: traffic.StreamResult) -> None:
    """Nothing may be lost while routes change, but a few packets by the userspace datapath.

    Open vSwitch 3.1 forgets its own copy of the routes for a moment at every change in the kernel's, in whatever
    table (lib/route-table.c), and drops what it should send by a tunnel just then.
    """
    assert result.lost <= (result.sent * 0.05 if lab.userspace else 0), result


def _change_import(lab: Lab, cluster: str, imported: str, cidrs: list[str]) -> None:
    lab.api(cluster).patch(
        "ClusterInfoImport", f"{imported}-clusterinfo", {"spec": {"podCIDRs": cidrs}}, objects.NAMESPACE
    )


def test_a_fresh_start_gives_the_same_as_a_long_life(lab: Lab) -> None:
    """Everything removed and programmed anew by a new agent equals what was there."""
    for node in lab.topology.clusters[0].nodes:
        before = dumps(lab, node.name)
        lab.stop_agent(node.name)
        lab.mcagent(node.name, "cleanup")
        lab.start_agent(node.name)
        lab.wait_ready(node.name)
        wait_until(lambda node=node, before=before: dumps(lab, node.name) == before, "the same", timeout=60)  # type: ignore[misc]


def test_an_import_deleted_and_created_again(lab: Lab, before: Dumps) -> None:
    """Without it nothing of the cluster is left; with it again everything is as before."""
    east, west = lab.topology.clusters
    api = lab.api(east.name)
    api.delete("ClusterInfoImport", f"{west.name}-clusterinfo", objects.NAMESPACE)
    for node in east.nodes:
        wait_until(lambda node=node: not _routed(lab, node.name, str(west.pod_cidr)), "routes to go", timeout=20)  # type: ignore[misc]
    lab.wait_ready()
    gateway = lab.ovs(east.gateways[0].name)
    assert not [port for port in gateway.vsctl("list-ports", BRIDGE).split() if port.startswith("mcr-")]
    api.create(objects.import_object(west))
    for node in east.nodes:
        wait_until(lambda node=node: dumps(lab, node.name) == before[node.name], "all to be back", timeout=20)  # type: ignore[misc]


@pytest.mark.timing
def test_an_object_changed_a_thousand_times_settles_once(lab: Lab, before: Dumps, datapath: DatapathType) -> None:
    """A thousand changes in a burst end in the last one's state, without a leak and in far fewer passes."""
    if datapath is not DatapathType.NETDEV:
        pytest.skip("how changes are gathered is the same on any datapath")
    east, west = lab.topology.clusters
    gateway = east.gateways[0].name
    passes = lab.status(gateway)["passes"]
    memory = _resident(lab, gateway)
    begin = time.monotonic()
    with stream(lab) as packets:
        for number in range(1000):
            _change_import(lab, east.name, west.name, [str(west.pod_cidr), f"10.77.{number % 250}.0/24"])
        seconds = time.monotonic() - begin
        _change_import(lab, east.name, west.name, [str(west.pod_cidr)])
        for node in east.nodes:
            wait_until(lambda node=node: dumps(lab, node.name) == before[node.name], "one state", timeout=30)  # type: ignore[misc]
    lab.wait_ready()
    assert_none_lost(lab, result(packets))
    after = lab.status(gateway)["passes"]
    assert isinstance(passes, int)
    assert isinstance(after, int)
    assert after - passes < 600, f"1000 changes in {seconds:.1f} s"
    assert _resident(lab, gateway) < memory + 20_000
    for node in east.nodes:
        lab.mcagent(node.name, "plan", "--exit-code")


def _resident(lab: Lab, node: str) -> int:
    """Resident memory of a Node's agent in KiB."""
    process = lab.state.process(f"agent-{node}")
    assert process is not None
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert match
    return int(match[1])


def test_what_somebody_removes_is_put_back(lab: Lab) -> None:
    """A route, rule, nft table, address, tunnel, the bridge itself: each is noticed and put back."""
    node = lab.topology.clusters[0].gateways[0].name
    namespace, ovs = lab.namespace(node), lab.ovs(node)
    before = dumps(lab, node)
    tunnel = next(port for port in ovs.vsctl("list-ports", BRIDGE).split() if port.startswith("mcr-"))
    route = netns.ip(namespace, "route", "show", "table", "28003").split()[0]
    mischief: dict[str, Callable[[], object]] = {
        "route": lambda: netns.ip(namespace, "route", "del", route, "table", "28003"),
        "rule": lambda: netns.ip(namespace, "rule", "del", "table", "28003"),
        "nft table": lambda: netns.execute(namespace, ["nft", "delete", "table", "ip", "mcagent"]),
        "address": lambda: netns.ip(namespace, "address", "flush", "dev", "mc-gw0"),
        "device down": lambda: netns.ip(namespace, "link", "set", "mc-gw0", "down"),
        "tunnel": lambda: ovs.vsctl("del-port", BRIDGE, tunnel),
        "bridge": lambda: ovs.vsctl("del-br", BRIDGE),
    }
    for fault, do in mischief.items():
        do()
        limit = 30 if fault in ("tunnel", "bridge") else 5  # a new tunnel waits for BFD
        wait_until(lambda: _same(lab, node, before), f"{fault} to be put back", timeout=limit)
    lab.wait_ready()


def test_flows_and_groups_changed_by_hand_are_put_back_and_told(lab: Lab) -> None:
    """Deleted, changed and added ones are noticed within 5 s, counted by kind, logged, and named in an Event."""
    cluster = lab.topology.clusters[0]
    node = cluster.gateways[0].name
    ovs = lab.ovs(node)
    before = dumps(lab, node)
    mischief: tuple[tuple[str, list[str], str, str], ...] = (
        ("del-flows", [], "FlowEntry", "put back what was gone: flow"),
        ("del-groups", [], "GroupEntry", "put back what was gone: group"),
        (
            "add-flow",
            ["table=0,priority=65000,cookie=0x6d63010000000000,actions=drop"],
            "FlowEntry",
            "removed what was added: flow table=0,priority=65000",
        ),
        ("mod-flows", ["actions=drop"], "FlowEntry", "(it was changed to flow"),
    )
    for command, arguments, kind, message in mischief:
        counted = _corrections(lab, node, kind)

        def known(kind: str = kind, counted: float = counted, message: str = message) -> bool:
            return _corrections(lab, node, kind) > counted and message in _drift_events(lab, cluster)

        ovs.ofctl(command, ovs.mgmt(BRIDGE), *arguments)
        wait_until(lambda: _same(lab, node, before), f"{command} to be undone", timeout=5)
        wait_until(
            known, f"a count of {kind} put back and an Event that says: {message}", timeout=90
        )  # few are written a minute
        assert message in (lab.directory(node) / "agent.log").read_text()


def _corrections(lab: Lab, node: str, kind: str) -> float:
    name = f'mcagent_drift_corrections_total{{backend="openflow",kind="{kind}"}}'
    lines = lab.http(node, "/metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def _drift_events(lab: Lab, cluster: Cluster) -> str:
    """Return what all Events about what was put back say."""
    _, events = lab.api(cluster.name).request("GET", "/api/v1/namespaces/default/events")
    items = events.get("items", [])
    assert isinstance(items, list)
    return "\n".join(str(item.get("message")) for item in items if item.get("reason") == "DriftCorrected")


def _same(lab: Lab, node: str, before: dict[str, object]) -> bool:
    with contextlib.suppress(Exception):  # the bridge may be away just now
        return dumps(lab, node) == before
    return False


@contextlib.contextmanager
def _nft_refuses(lab: Lab, node: str) -> Iterator[None]:
    """Let another process own the nft table (nft(8), flags owner): every change of ours is refused."""
    argv = netns.command(lab.namespace(node), ["nft", "-i"])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdin is not None

        def taken() -> bool:
            assert owner.stdin is not None
            owner.stdin.write("delete table ip mcagent\nadd table ip mcagent { flags owner; }\n")
            owner.stdin.flush()
            return "owner" in netns.execute(lab.namespace(node), ["nft", "list", "tables"]).stdout or _owned(
                lab, node
            )

        try:
            wait_until(taken, "another owner of the nft table", interval=0.2)
            yield
        finally:
            owner.stdin.close()
            owner.wait(timeout=10)


def _owned(lab: Lab, node: str) -> bool:
    argv = ["nft", "list", "table", "ip", "mcagent"]
    return "flags owner" in netns.execute(lab.namespace(node), argv, check=False).stdout


@contextlib.contextmanager
def _openflow_refuses(lab: Lab, node: str) -> Iterator[None]:
    """Take the bridge's OpenFlow socket away."""
    path = Path(lab.ovs(node).mgmt(BRIDGE).removeprefix("unix:"))
    hidden = path.with_name("hidden")
    path.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(path)


@pytest.mark.timing
@pytest.mark.parametrize(("refuses", "backend"), [(_nft_refuses, "nft"), (_openflow_refuses, "openflow")])
def test_a_backend_that_refuses_does_not_stop_the_others(
    lab: Lab, refuses: Callable[[Lab, str], contextlib.AbstractContextManager[None]], backend: str
) -> None:
    """It is named by /readyz with its error, the others follow changes, nothing spins; afterwards all is right."""
    east, west = lab.topology.clusters
    node = east.workers[0].name
    before = dumps(lab, node)
    with refuses(lab, node):
        pods = [str(west.pod_cidr), "10.77.0.0/16"]
        _change_import(lab, east.name, west.name, pods)
        wait_until(lambda: _routed(lab, node, "10.77.0.0/16"), "routes to follow", timeout=20)
        wait_until(lambda: _backend(lab, node, backend)["errors"], f"{backend} to be told of", timeout=20)
        assert backend in readyz(lab, node)[1]
        failures = int(str(_backend(lab, node, backend)["failures"]))
        begin = time.monotonic()
        wait_until(lambda: time.monotonic() > begin + 3, "three seconds of trying")
        assert int(str(_backend(lab, node, backend)["failures"])) - failures < 10
    _restore_import(lab)
    wait_until(lambda: _same(lab, node, before), f"{backend} to be right again", timeout=40)


def _backend(lab: Lab, node: str, name: str) -> dict[str, object]:
    backends = lab.status(node)["backends"]
    assert isinstance(backends, list)
    (backend_status,) = [backend for backend in backends if backend["name"] == name]
    assert isinstance(backend_status, dict)
    return backend_status
