"""Packets to other clusters go into a tunnel or are dropped, in each state of a cluster, however agents start.

A row of the table is a state (Gateways, Service CIDR, API server) and an event on all Nodes of the cluster. These
are gateways and a worker, and have no role without Gateways. The Nodes and their Pods send all the time.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from devtools.errors import LabError
from devtools.lab import objects
from devtools.lab.lab import Lab
from devtools.lab.running import environment
from devtools.lab.topology import POD_PORT, Cluster, Topology, generate
from devtools.nodes import netns, underlay
from devtools.traffic import traffic
from devtools.traffic.capture import ETHERNET_HEADER, Capture
from devtools.waiting import wait_until
from tests.attacks import packets

NOWHERE = "10.250.0.1"  # in no cluster: its packets leave by the default route
EARLIER = "947d879bf75e2556a11fdd327c0b89dd9768ca94"  # the revision that upgrades start from
OTHER_SERVICE_CIDR = "10.111.0.0/16"
ROUTE_PROTOCOL = "111"  # of mcagent's rules and routes
REPORTED = 60.0  # seconds
ALONE = 1.0  # seconds of agents without API server
EACH = 0.02  # seconds between the packets of a sender


class Row(NamedTuple):
    """A row of the table.

    `gateways`: all, none, or deleted during the event. `service_cidr`: known from the configuration, unknown, or
    changed in the Gateways (without one, in the configuration) during the event. `api`: reachable, away during the
    event and back afterwards, or lost when the agents have just started. `event`: restart and kill end and start
    the agents; upgrade starts them where an earlier version ran; a new Node has nothing of mcagent, a rebooted one
    only its files, and on both Pods send as soon as the agent is ready.
    """

    gateways: str
    service_cidr: str
    api: str
    event: str


# Each two values of two columns are together in a row, and each event is with and without Gateways.
ROWS = (
    Row("all", "known", "reachable", "restart"),
    Row("none", "unknown", "away", "restart"),
    Row("deleted", "changed", "lost", "restart"),
    Row("none", "changed", "reachable", "restart"),
    Row("all", "unknown", "lost", "kill"),
    Row("none", "known", "reachable", "kill"),
    Row("deleted", "unknown", "reachable", "kill"),
    Row("all", "changed", "away", "kill"),
    Row("none", "unknown", "lost", "kill"),
    Row("deleted", "known", "away", "kill"),
    Row("all", "unknown", "reachable", "reboot"),
    Row("none", "changed", "lost", "reboot"),
    Row("deleted", "known", "away", "reboot"),
    Row("none", "unknown", "away", "reboot"),
    Row("all", "known", "lost", "new Node"),
    Row("none", "unknown", "reachable", "new Node"),
    Row("deleted", "changed", "away", "new Node"),
    Row("all", "changed", "reachable", "upgrade"),
    Row("none", "known", "away", "upgrade"),
    Row("deleted", "unknown", "lost", "upgrade"),
)
IN_FIRST_TIER = (Row("none", "unknown", "away", "kill"), Row("deleted", "unknown", "reachable", "reboot"))


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[Topology], Lab]) -> Lab:
    """Two clusters, the first with two gateways and a worker."""
    return make_lab(generate(clusters=2, gateways=2, workers=1, pods=1))


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with mcagent of an earlier revision; skip the test where Git does not have it."""
    directory = tmp_path_factory.mktemp("earlier")
    root = Path(__file__).parents[2]
    archive = subprocess.run(
        ["git", "archive", EARLIER, "mcagent", "flows"], cwd=root, capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"upgrade: this clone lacks revision {EARLIER[:8]}")
    subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
    return directory


class Senders:
    """Threads that send datagrams to another cluster, and to nowhere: from each Node of a cluster and its Pod."""

    def __init__(self, lab: Lab, cluster: Cluster, targets: tuple[str, ...]) -> None:
        self.token = packets.token()
        self._targets = targets
        self._ended = threading.Event()
        self._sending = threading.Event()
        spaces = [lab.namespace(place) for node in cluster.nodes for place in (node, node.pods[0])]
        self._threads = [threading.Thread(target=self._send, args=(space,), daemon=True) for space in spaces]

    def _send(self, namespace: str) -> None:
        with netns.call(namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
            while not self._ended.wait(EACH):
                for target in self._targets if self._sending.is_set() else ():
                    with contextlib.suppress(OSError):  # no route, or a port that refused the last one
                        sender.sendto(self.token, (target, POD_PORT))

    def resume(self) -> None:
        """Send from now on."""
        self._sending.set()

    def pause(self) -> None:
        """Send nothing, until resumed."""
        self._sending.clear()

    def __enter__(self) -> Senders:
        for thread in self._threads:
            thread.start()
        self.resume()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def nothing_in_clear(lab: Lab) -> Iterator[Senders]:
    """Send from all Nodes and Pods of the first cluster; no packet to the second one leaves outside of a tunnel.

    Packets to an address of no cluster show that the capture sees what leaves by the default route.
    """
    east, west = lab.topology.clusters
    remote = (west.pod_cidr, west.service_cidr)
    targets = (str(west.workers[0].pods[0].address), str(west.services[0].cluster_ip), NOWHERE)
    with Capture(lab.underlay, underlay.bridge(1)) as uplinks, Senders(lab, east, targets) as senders:

        def destinations() -> set[str]:
            sent = uplinks.holding(senders.token)
            return {socket.inet_ntoa(p.frame[ETHERNET_HEADER + 16 : ETHERNET_HEADER + 20]) for p in sent}

        wait_until(lambda: NOWHERE in destinations(), "packets to nowhere", timeout=REPORTED)
        yield senders
        in_clear = {name for name in destinations() if name != NOWHERE and not is_of_node(lab, name)}
        assert not in_clear, f"of {remote}"


def is_of_node(lab: Lab, address: str) -> bool:
    """Tell whether an address is a Node's: the other end of a tunnel."""
    return any(str(node.address) == address for _, node in lab.topology.nodes())


def on_each(lab: Lab, action: Callable[[str], object]) -> None:
    """Do something on each Node of the first cluster, at the same time."""
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(action, node.name) for node in lab.topology.clusters[0].nodes]:
            future.result()


def flush(lab: Lab, node: str) -> None:
    """Remove what a Node loses when it reboots: rules, routes, nft tables, flows. Files stay."""
    for command in (
        ("ip", "rule", "flush", "protocol", ROUTE_PROTOCOL),
        ("ip", "route", "flush", "table", "all", "protocol", ROUTE_PROTOCOL),
        ("nft", "delete", "table", "ip", "mcagent"),
    ):
        netns.execute(lab.namespace(node), list(command), check=False)
    lab.restart_vswitchd(node, kill=True)


def start_earlier(lab: Lab, node: str, code: Path) -> None:
    """Let an earlier version program a Node, and end it."""
    lab.stop_agent(node)
    directory = lab.directory(node)
    variables = {**environment(), "PYTHONPATH": str(code)}
    argv, log = lab.agent_command("agent", *lab.agent_flags(node)), directory / "earlier.log"
    lab.state.spawn(f"agent-{node}", lab.namespace(node), argv, log=log, env=variables)
    lab.wait_ready(node)


def gateways_of(lab: Lab) -> dict[str, Any]:
    """Return the Gateways of the first cluster, by name."""
    east = lab.topology.clusters[0]
    return {node.name: lab.api(east.name).get("Gateway", node.name, objects.NAMESPACE) for node in east.gateways}


def delete_gateways(lab: Lab) -> None:
    """Delete the Gateways of the first cluster."""
    east = lab.topology.clusters[0]
    for node in east.gateways:
        lab.api(east.name).delete("Gateway", node.name, objects.NAMESPACE)


def restore(lab: Lab, gateways: Mapping[str, Any]) -> None:
    """Make the Gateways of the first cluster as they were."""
    api = lab.api(lab.topology.clusters[0].name)
    for name, raw in gateways.items():
        if api.get("Gateway", name, objects.NAMESPACE) is not None:
            api.delete("Gateway", name, objects.NAMESPACE)
        fields = {key: value for key, value in raw.items() if key not in ("metadata", "status")}
        api.create({**fields, "metadata": {key: raw["metadata"][key] for key in ("name", "namespace")}})


def roles(lab: Lab) -> set[object]:
    """Return the roles of the Nodes of the first cluster."""
    statuses: list[Any] = [lab.status(node.name) for node in lab.topology.clusters[0].nodes]
    return {status["summary"]["role"] for status in statuses}


def start_all(lab: Lab, row: Row) -> None:
    """Start the agents in the state of a row, with what changes meanwhile."""
    east = lab.topology.clusters[0]
    cidr = OTHER_SERVICE_CIDR if row == ("none", "changed", *row[2:]) else str(east.service_cidr)
    changes = {} if row.service_cidr == "unknown" else {"serviceCIDRs": [cidr]}
    on_each(lab, lambda node: lab.start_agent(node, changes))


def change(lab: Lab, row: Row) -> None:
    """Change Gateways and Service CIDR as a row says."""
    api = lab.api(lab.topology.clusters[0].name)
    if row.service_cidr == "changed" and row.gateways != "none":
        for name in gateways_of(lab):
            api.patch("Gateway", name, {"serviceCIDR": OTHER_SERVICE_CIDR}, objects.NAMESPACE)
    if row.gateways == "deleted":
        delete_gateways(lab)


def end_agents(lab: Lab, row: Row, senders: Senders) -> None:
    """End the agents as a row says, and remove what its event removes."""
    if row.event in ("reboot", "new Node"):
        senders.pause()
    on_each(lab, lambda node: lab.stop_agent(node, kill=row.event in ("kill", "reboot")))
    if row.event == "reboot":
        on_each(lab, lambda node: flush(lab, node))
    if row.event == "new Node":
        on_each(lab, lambda node: lab.mcagent(node, "cleanup"))


def run(lab: Lab, row: Row, code: Path | None) -> None:
    """Do what a row says, and put the lab back to rest; fail for a packet in clear."""
    east = lab.topology.clusters[0]
    gateways = gateways_of(lab)
    expected = {"gateway", "worker"} if row.gateways == "all" else {"none"}
    lab.wait_ready()
    if code is not None:
        on_each(lab, lambda node: start_earlier(lab, node, code))
    with nothing_in_clear(lab) as senders:
        if row.gateways == "none":
            delete_gateways(lab)
            wait_until(lambda: roles(lab) == {"none"}, "no role", timeout=REPORTED)
        end_agents(lab, row, senders)
        if row.api != "away":
            start_all(lab, row)
        if row.api == "lost":
            change(lab, row)
        if row.api != "reachable":
            lab.stop_api(east.name)
        if row.api == "away":
            start_all(lab, row)
        since = time.monotonic()
        if row.api != "reachable":
            wait_until(lambda: time.monotonic() > since + ALONE, "a while", timeout=REPORTED)
            lab.start_api(east)
        if row.api != "lost":
            change(lab, row)
        on_each(lab, lab.wait_ready)
        senders.resume()
        wait_until(lambda: roles(lab) == expected, f"roles {expected}", timeout=REPORTED)
        if row.gateways != "all" or row.service_cidr == "changed":
            restore(lab, gateways)
        wait_until(lambda: roles(lab) == {"gateway", "worker"}, "roles", timeout=REPORTED)


@pytest.fixture(autouse=True)
def _at_rest(lab: Lab) -> Iterator[None]:
    """Whatever a test that failed has left, the next one has an API server and agents."""
    yield
    east = lab.topology.clusters[0]
    with contextlib.suppress(LabError):
        lab.start_api(east) if not lab.state.process(f"api-{east.name}") else None


@pytest.mark.parametrize("row", [row for row in ROWS if row.event != "upgrade"], ids="-".join)
def test_no_packet_to_another_cluster_leaves_in_clear(lab: Lab, row: Row) -> None:
    """In each state, whatever ends and starts the agents."""
    run(lab, row, None)


@pytest.mark.parametrize("row", [row for row in ROWS if row.event == "upgrade"], ids="-".join)
def test_no_packet_leaves_in_clear_during_an_upgrade(lab: Lab, row: Row, earlier: Path) -> None:
    """In each state, where an earlier version has programmed the Nodes."""
    run(lab, row, earlier)


def test_a_blackhole_route_covers_the_time_before_the_agent_starts(lab: Lab) -> None:
    """Pods that run before the agent of a rebooted Node do not leak, and the route is not in the agent's way."""
    east, west = lab.topology.clusters
    lab.wait_ready()
    with nothing_in_clear(lab) as senders, contextlib.ExitStack() as repairs:
        for node in east.nodes:
            for cidr in (west.pod_cidr, west.service_cidr):
                add, delete = (["ip", "route", verb, "blackhole", str(cidr)] for verb in ("add", "del"))
                netns.execute(lab.namespace(node), add)
                repairs.callback(netns.execute, lab.namespace(node), delete)
        end_agents(lab, Row("all", "unknown", "reachable", "reboot"), senders)
        senders.resume()
        start_all(lab, Row("all", "unknown", "reachable", "reboot"))
        on_each(lab, lab.wait_ready)
        for node in east.nodes:
            pod = lab.namespace(node.pods[0])
            wait_until(
                lambda pod=pod: traffic.udp(pod, west.workers[0].pods[0].address, POD_PORT, b"x").pod,  # type: ignore[misc]
                f"an answer to the Pod of {node.name}",
                timeout=REPORTED,
            )


@pytest.mark.packets
@pytest.mark.parametrize("row", IN_FIRST_TIER, ids="-".join)
def test_no_packet_leaves_in_clear_without_gateways(lab: Lab, row: Row) -> None:
    """The rows of the first tier: without Gateways a Node's memory, and its kernel's, cannot help."""
    run(lab, row, None)
