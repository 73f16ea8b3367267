"""The lab itself, without agents: its network does what such networks do, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from devtools.errors import LabError
from devtools.lab import state
from devtools.lab.lab import Lab
from devtools.lab.topology import OUTSIDE, POD_PORT, Cni, generate
from devtools.nodes import netns
from devtools.traffic import queues, traffic
from devtools.waiting import wait_until
from mcagent.model.dataplane.facts import DatapathType
from tests.worlds.labs import OWN_NAMES, fresh_name
from tests.worlds.profiles import WITH_OUR_AGENTS

OF_LABS = re.compile(r"\b(br-mc|br-phy|mc-gw0|pod\d|lookup 2800\d|mcl-)")
"""What links and rules of a lab's namespaces are called, none of which may be in the caller's."""


def _world() -> set[str]:
    """Return what labs of this process could leave behind: their namespaces, and links and rules in the caller's.

    Nothing else: other test processes and clones have labs and links, too, which come and go meanwhile.
    """
    spaces = {path.name for path in netns.NETNS_DIRECTORY.iterdir()} if netns.NETNS_DIRECTORY.exists() else set()
    outside = (netns.ip("", "-br", "link") + netns.ip("", "rule")).splitlines()
    own = {name for name in spaces if name.startswith(f"mcl-{OWN_NAMES}")}
    return own | {line for line in outside if OF_LABS.search(line)}


def _processes(word: str) -> list[str]:
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in text and f"/{os.getpid()}/" not in str(path):
            processes.append(text)
    return processes


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(cni, marks=pytest.mark.packets) if cni is Cni.FLANNEL else cni for cni in WITH_OUR_AGENTS
    ],
    ids=str,
)
def bare(request: pytest.FixtureRequest, make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    """A lab of each CNI profile, without agents."""
    with make_lab(generate(cni=request.param), agents=False) as lab:
        yield lab


def test_pods_of_a_cluster_reach_each_other_by_their_own_addresses(bare: Lab) -> None:
    """Inside a cluster nothing is translated, on the Node or between Nodes, by Pod address or ClusterIP."""
    cluster = bare.topology.clusters[0]
    first, second = cluster.nodes[0].pods[0], cluster.nodes[1].pods[0]
    reply = traffic.tcp(bare.namespace(first), second.address, POD_PORT)
    assert (reply.pod, reply.source) == (second.name, str(first.address))
    reply = traffic.udp(bare.namespace(second), first.address, POD_PORT, b"x" * 1400)
    assert (reply.pod, reply.source) == (first.name, str(second.address))
    pods = {traffic.tcp(bare.namespace(first), cluster.services[0].cluster_ip, 80).pod for _ in range(16)}
    assert pods == {first.name, second.name}


def test_what_leaves_the_cluster_has_the_address_of_its_node(bare: Lab) -> None:
    """Masquerade (flannel) and SNAT (aws-vpc) let Pods out under their Node's address."""
    for node in bare.topology.clusters[1].nodes:
        reply = traffic.tcp(bare.namespace(node.pods[0]), OUTSIDE, POD_PORT)
        assert (reply.pod, reply.source) == ("outside", str(node.address))


def test_other_clusters_pods_are_not_reached_without_agents(bare: Lab) -> None:
    """The underlay carries no Pod's packets between clusters."""
    client = bare.topology.clusters[0].nodes[1].pods[0]
    target = bare.topology.clusters[1].nodes[1].pods[0]
    if client.address in bare.topology.clusters[1].pod_cidr:
        pytest.skip("the same Pod CIDR in both clusters: the address is one of the client's own cluster")
    with pytest.raises(LabError):
        traffic.tcp(bare.namespace(client), target.address, POD_PORT, timeout=0.5)


def test_a_node_cannot_send_with_an_address_that_is_not_its_own(bare: Lab) -> None:
    """The source check of the aws-vpc underlay drops it; the other underlays, as plain switches, do not."""
    cluster = bare.topology.clusters[0]
    liar, target = cluster.nodes[0], cluster.nodes[1]
    stranger = cluster.subnet[200]
    netns.ip(bare.namespace(liar), "address", "add", f"{stranger}/32", "dev", "lo")
    try:
        allowed = cluster.cni is not Cni.AWS_VPC
        within = traffic.PATIENCE if allowed else 1.0
        argv = ["ping", "-n", "-q", "-c", "1", "-w", f"{within:.0f}", "-I", str(stranger), str(target.address)]
        route = [str(stranger), "via", str(liar.address)]
        netns.ip(bare.namespace(target), "route", "add", *route)
        done = netns.execute(bare.namespace(liar), argv, check=False)
        assert (done.returncode == 0) is allowed
        if not allowed:
            counter = netns.execute(bare.underlay, ["nft", "-j", "list", "counters"]).stdout
            packets = {entry["counter"]["name"]: entry["counter"]["packets"] for entry in _counters(counter)}
            assert packets["bad-source"] >= 1
    finally:
        netns.ip(bare.namespace(liar), "address", "del", f"{stranger}/32", "dev", "lo")
        netns.ip(bare.namespace(target), "route", "del", str(stranger))


def _counters(text: str) -> list[dict[str, Any]]:
    return [entry for entry in json.loads(text)["nftables"] if "counter" in entry]


def test_up_again_leaves_a_running_lab_as_it_is(bare: Lab) -> None:
    """The same processes run after a second `up` of the same lab."""
    before = bare.state.processes(), bare.ovs_processes()
    Lab.up(bare.topology, agents=False)
    assert (bare.state.processes(), bare.ovs_processes()) == before


def test_down_leaves_nothing_and_other_labs_alone(bare: Lab) -> None:
    """A second lab comes and goes beside the first, which goes on working."""
    before = _world()
    other = Lab.up(generate(name=fresh_name(), clusters=1, workers=0), agents=False)
    directory = str(other.state.directory)
    assert _processes(directory)
    other.down()
    assert _world() == before
    assert not other.state.directory.exists()
    assert _processes(directory) == []
    client, target = (node.pods[0] for node in bare.topology.clusters[0].nodes)
    assert traffic.tcp(bare.namespace(client), target.address, POD_PORT).pod == target.name


@pytest.mark.parametrize("moment", ["lab.json", "processes/api-west.json", "nodes/east-gw1/ovs", "servers.json"])
def test_a_lab_whose_maker_was_killed_half_way_is_taken_down(moment: str) -> None:
    """Whatever was there when `up` got SIGKILL, `down` from another process removes."""
    before = _world()
    name = fresh_name()
    lab = Lab(name)
    argv = [sys.executable, "-m", "devtools.lab", "up", "--no-agents", "--name", name]
    environment = {**os.environ, state.OWNER: str(os.getpid())}  # devtools.leftovers of another clone lets it be
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, start_new_session=True, env=environment) as child:
        wait_until((lab.state.directory / moment).exists, f"{moment} of the lab", timeout=60, interval=0.001)
        os.kill(child.pid, signal.SIGKILL)
    Lab(name).down()
    assert _world() == before
    assert not lab.state.directory.exists()
    assert _processes(str(lab.state.directory)) == []


def test_packets_that_ovs_vswitchd_does_not_read_in_time_are_told_by_node(
    bare: Lab, datapath: DatapathType
) -> None:
    """While it stands still its Node's queue overflows, on the userspace datapath; nobody else's does."""
    (_, asleep), (_, sender), *_ = bare.topology.nodes()
    source, target = bare.namespace(sender), str(asleep.address)
    netns.execute(source, ["ping", "-c", "1", target])  # and the neighbour is known
    before = queues.dropped(bare)
    assert {name for name, _ in before} == {node.name for _, node in bare.topology.nodes()}

    def flood() -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            for _ in range(3000):
                sock.sendto(b"x", (target, 9))

    def lost() -> dict[str, int]:
        netns.call(source, flood)
        os.kill(pid, signal.SIGCONT)
        try:
            return queues.since(before, queues.dropped(bare))
        finally:
            os.kill(pid, signal.SIGSTOP)

    pid = bare.ovs(asleep.name).pids["ovs-vswitchd"]
    os.kill(pid, signal.SIGSTOP)
    try:
        if datapath is DatapathType.NETDEV:
            wait_until(lambda: list(lost()) == [asleep.name], "the queue to overflow", timeout=30)
        else:
            assert lost() == {}  # the kernel forwards by itself
    finally:
        os.kill(pid, signal.SIGCONT)


def test_down_ends_no_process_that_got_a_pid_of_ours_since(bare: Lab) -> None:
    """A record whose start time is not that of the process with its pid is passed over."""
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            real = state.process_of(stranger.pid)
            state.end([replace(real, start=real.start - 1)])
            assert stranger.poll() is None
            assert not replace(real, start=real.start - 1).alive
            assert asdict(real)["pid"] == stranger.pid
        finally:
            stranger.kill()


def test_a_name_that_is_taken_by_others_is_refused() -> None:
    """A namespace that the lab did not make is neither used nor removed."""
    name = fresh_name()
    foreign = f"mcl-{name}-underlay"
    netns.create(foreign)
    try:
        with pytest.raises(LabError, match="that it did not make"):
            Lab.up(generate(name=name), agents=False)
        assert netns.exists(foreign)
    finally:
        netns.delete(foreign)
