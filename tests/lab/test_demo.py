"""What the demo shows, with more than one gateway, and that it would show what is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devtools.lab import objects
from devtools.lab.lab import Lab
from devtools.lab.state import labs
from devtools.lab.topology import Cni, generate
from devtools.nodes import netns
from devtools.traffic import matrix, traffic
from devtools.waiting import wait_until
from mcagent.model.dataplane.facts import DatapathType
from tests.worlds.labs import fresh_name
from tests.worlds.profiles import WITH_OUR_AGENTS

MCLAB = Path(__file__).parents[2] / "devtools/mclab"
ALL_CNIS = 840.0  # seconds that the demo with every CNI profile may take; on a busy machine it took 260


def run(*args: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run `devtools/mclab …` as people do."""
    argv = [str(MCLAB), *args]
    plain = {
        "PATH": os.defpath + ":/usr/sbin:/sbin",
        "HOME": os.environ.get("HOME", "/"),
    }
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False, env=plain)


def test_the_demo_shows_the_topology_and_a_matrix_and_leaves_nothing() -> None:
    """One command: the picture, a line per step, every way between two clusters, exit code 0."""
    name = fresh_name()
    done = run("demo", "--name", name, "--tunnel", "vxlan", "--gateways", "1", "--no-control-plane")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("cluster east (flannel)", "══vxlan", "ok  4 agents", "Pod on worker west-w1-p1", "(kept)"):
        assert word in done.stdout
    assert "All 20 are as they should be" in done.stdout
    assert "\033" not in done.stdout  # plain lines where the output is no terminal
    assert name not in labs()


@pytest.mark.timeout(ALL_CNIS + 60)
def test_the_demo_shows_a_cluster_set_at_work_with_every_cni(datapath: DatapathType) -> None:
    """Controllers make the ClusterSet; an exported Service is used elsewhere; connections outlive a gateway."""
    if datapath is not DatapathType.NETDEV:
        pytest.skip("the control plane is the same on any datapath")
    name = fresh_name()
    done = run("demo", "--all-cnis", "--name", name, timeout=ALL_CNIS)
    assert done.returncode == 0, done.stdout + done.stderr
    for cni in WITH_OUR_AGENTS:
        assert f"cluster east ({cni})" in done.stdout
    for text in (
        "controllers: a leader, 2 members",
        "answers a Pod of west",
        ": of 20 to antrea-mc-hello",
    ):
        assert done.stdout.count(text) == len(WITH_OUR_AGENTS), text
    assert done.stdout.count(" 0 broke, ") == len(WITH_OUR_AGENTS) - 1
    assert done.stdout.count(" broke by a reset, ") == 1  # where Pods are not published
    assert f"All {sum(map(_shown, WITH_OUR_AGENTS))} are as they should" in done.stdout
    assert name not in labs()


def _shown(cni: Cni) -> int:
    """Return how many paths and claims the demo shows with a CNI."""
    # Pods of clusters that overlap do not reach each other, so fewer paths are tried.
    return 14 if cni is Cni.OVERLAP else 22


@pytest.fixture(scope="module", params=WITH_OUR_AGENTS, ids=str)
def double(request: pytest.FixtureRequest, make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    """Two clusters of two gateways and one worker."""
    with make_lab(generate(cni=request.param, gateways=2)) as lab:
        yield lab


def test_every_way_with_two_gateways_in_each_cluster(double: Lab) -> None:
    """Reached, one copy, the right source, whichever gateways a connection takes."""
    wrong = [
        f"{r.case.source.name} -> {r.case.target}: {r.problem}"
        for r in (matrix.run(double, case) for case in matrix.cases(double.topology))
        if not r.ok
    ]
    assert wrong == []


def test_connections_spread_over_both_gateways_and_all_endpoints(double: Lab) -> None:
    """Many connections of one Pod: both gateways of its cluster carry some, every endpoint serves some."""
    east, west = double.topology.clusters
    client = double.namespace(east.workers[0].pods[0])
    before = {node.name: _carried(double, node.name) for node in east.gateways}
    replies = [traffic.tcp(client, west.services[0].cluster_ip, 80) for _ in range(48)]
    assert {reply.pod for reply in replies} == set(west.services[0].pods)
    for node in east.gateways:
        assert _carried(double, node.name) > before[node.name]
    if east.cni is Cni.OVERLAP:
        assert {reply.source for reply in replies} == set(map(str, map(matrix.seen_as, east.gateways)))


def _carried(lab: Lab, node: str) -> int:
    """Packets that a gateway has sent to other clusters."""
    ovs = lab.ovs(node)
    ports = [port for port in ovs.vsctl("list-ports", "br-mc").split() if port.startswith("mcr-")]
    texts = [ovs.ofctl("dump-ports", ovs.mgmt("br-mc"), port) for port in ports]
    return sum(int(packets) for text in texts for packets in re.findall(r"tx pkts=(\d+)", text))


DOUBLE = """
table ip double {{
  chain forward {{
    type filter hook forward priority 0;
    iifname "mc-gw0" meta l4proto udp dup to {address}
  }}
}}
"""

FIRST_LOST = """
table ip first {
  set seen {
    type ipv4_addr . inet_service
    size 1000
    flags dynamic
  }
  chain forward {
    type filter hook forward priority 0;
    iifname "mc-gw0" ip saddr . udp sport @seen accept
    iifname "mc-gw0" meta l4proto udp add @seen { ip saddr . udp sport } drop
  }
}
"""


def test_the_matrix_tells_what_is_wrong(make_lab: Callable[..., Lab]) -> None:
    """Doubled packets, lost first ones, a dead way, a Service that answers though it should not: all are told."""
    lab = make_lab(generate())
    west = lab.topology.clusters[1]
    node, pod = west.workers[0], west.workers[0].pods[0]
    cases = list(matrix.cases(lab.topology))
    case = next(c for c in cases if c.source_role == "worker" and c.address == pod.address)
    assert matrix.run(lab, case).ok
    netns.execute(lab.namespace(node), ["nft", "-f", "-"], stdin=DOUBLE.format(address=pod.address))
    assert "copies per packet: 2" in matrix.run(lab, case).problem
    netns.execute(lab.namespace(node), ["nft", "delete", "table", "ip", "double"])
    netns.execute(lab.namespace(node), ["nft", "-f", "-"], stdin=FIRST_LOST)
    assert "the first datagrams of 5 connections were lost" in matrix.run(lab, case).problem
    netns.execute(lab.namespace(node), ["nft", "delete", "table", "ip", "first"])
    assert matrix.run(lab, case).ok
    lab.stop_agent(node.name)
    ovs = lab.ovs(node.name)
    ovs.ofctl("del-flows", ovs.mgmt("br-mc"))
    # flows in the datapath are looked at again within the revalidation interval, half a second
    wait_until(lambda: "timed out" in matrix.run(lab, case).problem, "the dead way to be told", timeout=30)
    lab.start_agent(node.name)
    lab.wait_ready(node.name)
    assert matrix.run(lab, case).ok
    closed = next(c for c in cases if c.closed and c.address == west.services[1].cluster_ip)
    assert matrix.run(lab, closed).ok
    lab.api(west.name).create(objects.export_object(west.services[1]))
    wait_until(lambda: "answered" in matrix.run(lab, closed).problem, "the matrix to tell of an open Service")


def test_status_and_exec_and_a_repeated_down() -> None:
    """From other processes: status tells of every Node, exec runs in it, down may be repeated."""
    name = fresh_name()
    assert run("up", "--name", name, "--clusters", "1", "--workers", "0").returncode == 0
    try:
        status = run("status", "--name", name, "-o", "json")
        assert status.returncode == 0
        (node,) = json.loads(status.stdout)[name]["nodes"]
        assert (node["node"], node["role"], node["ready"]) == ("east-gw1", "gateway", "yes")
        assert "br-mc" in run("exec", "--name", name, "east-gw1", "--", "ovs-vsctl", "list-br").stdout
        agent = json.loads(run("exec", "--name", name, "east-gw1", "--", "mcagent", "status", "-o", "json").stdout)
        assert agent["node"] == "east-gw1"
        assert run("exec", "--name", name, "east-gw1-p1", "true").returncode == 0
        assert "it has underlay, east, east-gw1" in run("exec", "--name", name, "nobody", "true").stderr
    finally:
        assert run("down", "--name", name).returncode == 0
    assert run("down", "--name", name).returncode == 0
    assert run("status", "--name", name).returncode == 1
