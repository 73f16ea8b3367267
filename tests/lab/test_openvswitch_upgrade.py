"""The Open vSwitch that comes along (`mcagent openvswitch`) is upgraded under traffic: the new one takes over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from devtools.lab import faults
from devtools.lab.faults import Fault, Settled
from devtools.lab.lab import Lab
from devtools.nodes import netns, node
from devtools.traffic.load import Kind, Load
from devtools.waiting import wait_until
from mcagent.model.dataplane.facts import DatapathType
from tests.worlds import failover
from tests.worlds.failover import Intervals, Row, Volume, lost, words

pytestmark = pytest.mark.datapath

# Long enough for a busy machine, as in test_failover_short.
INTERVALS = Intervals(name="400x3", local=400, remote=400, bound=2.4)
VOLUME = Volume(datagrams=60, connections=8, interval=0.1)
# ovs-vswitchd deletes the device of its tunnels when it starts, and makes it again: packets of that time are lost.
HOLE = 0.5  # seconds; 0.01 to 0.08 in a test kernel that is alone
SILENCE = 3.6  # seconds: the longest that a connection may wait


class Switches:
    """The Open vSwitches of a lab's Nodes, run by `mcagent openvswitch` as its DaemonSet does."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._running: dict[str, list[subprocess.Popen[bytes]]] = {}

    def take_over(self, name: str) -> None:
        """Start the first one in place of the lab's own."""
        ovs = self._lab.ovs(name)
        ovs.stop()
        (ovs.directory / "mcagent-runs").touch()  # else the device of the datapath is taken for somebody else's
        self._start(name)
        self._says(name, "ovs-vswitchd forwards")
        self._prime(name)

    def upgrade(self, name: str) -> None:
        """Start another, which stands by, and end the one that runs, as Kubernetes does with maxSurge 1."""
        self._start(name)
        self._says(name, "another mcagent container")
        old = self._running[name].pop(0)
        old.terminate()
        self._says(name, "ovs-vswitchd forwards again")
        self._prime(name)
        old.wait(30)

    def stop(self) -> None:
        """End all."""
        for running in self._running.values():
            for one in running:
                one.terminate()
            for one in running:
                one.wait(30)

    def _start(self, name: str) -> None:
        _, node = self._lab.topology.node(name)
        directory = str(self._lab.ovs(name).directory)
        command = [sys.executable, "-m", "mcagent.cli.main", "openvswitch"]
        command += ["--run-directory", directory, "--data-directory", directory]
        with (self._lab.ovs(name).directory / "containers.log").open("ab") as log:
            log.truncate(0)
            started = subprocess.Popen(
                netns.command(self._lab.namespace(node), command), stdout=log, stderr=subprocess.STDOUT
            )
        self._running.setdefault(name, []).append(started)

    def _says(self, name: str, text: str) -> None:
        log = self._lab.ovs(name).directory / "containers.log"
        wait_until(lambda: text in log.read_text(), f"{text!r} in {log}", timeout=40, interval=0.02)

    def _prime(self, name: str) -> None:
        if self._lab.userspace:
            cluster, _ = self._lab.topology.node(name)
            node.prime_neighbours(self._lab.ovs(name), cluster, cluster_number=faults.place(self._lab, name)[0])


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters of two gateways and a worker."""
    return make_lab(failover.topology(INTERVALS, gateways=2, workers=1))


@pytest.fixture(scope="module")
def switches(lab: Lab) -> Iterator[Switches]:
    """The Open vSwitches of a gateway and a worker of the first cluster."""
    switches = Switches(lab)
    try:
        for one in (lab.topology.clusters[0].gateways[0], lab.topology.clusters[0].workers[0]):
            switches.take_over(one.name)
        yield switches
    finally:
        switches.stop()


@pytest.fixture(scope="module")
def load(lab: Lab, switches: Switches) -> Iterator[Load]:
    """Traffic that goes on through all tests."""
    Settled(lab)
    with Load(failover.streams(lab, VOLUME)) as load:
        yield load


@pytest.mark.timing
@pytest.mark.parametrize("role", ["gateway", "worker"])
def test_an_upgrade_of_open_vswitch_breaks_no_connection(
    lab: Lab, switches: Switches, load: Load, datapath: DatapathType, role: str
) -> None:
    """The kernel's datapath goes on forwarding what it knows; with one in userspace all is back within seconds."""

    def make(lab: Lab, name: str) -> Fault:
        chosen = name if role == "gateway" else lab.topology.clusters[0].workers[0].name
        return Fault(name=chosen, inject=lambda: switches.upgrade(chosen), heal=lambda: None)

    row = Row(name="Open vSwitch upgraded", make=make, spell=4.0)
    result = failover.play(lab, load, Settled(lab), row, number=0)
    description = f"{result.node}\n{words(result.during)}\nafter it:\n{words(result.after)}"
    assert failover.broken(result.during) == failover.broken(result.after) == 0, description
    if datapath is DatapathType.SYSTEM:
        datagrams = [stream for stream in result.during.streams.values() if stream.kind is Kind.UDP]
        assert max(stream.lost for stream in datagrams) <= HOLE * VOLUME.datagrams / len(datagrams), description
        assert lost(result.after) == 0, description
    assert max(failover.tcp_silences(result.during)) < SILENCE + result.during.stall, description
