"""`mcagent doctor` in a lab: nothing is wrong where nothing is; each hidden fault has its name within a minute."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from devtools.lab import faults
from devtools.lab.faults import Fault, Settled
from devtools.lab.lab import Lab
from devtools.lab.objects import NAMESPACE
from devtools.lab.topology import Topology, generate
from devtools.waiting import wait_until

pytestmark = pytest.mark.packets

MINUTE = 60.0  # seconds within which a fault has its name
Finding = dict[str, Any]


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[Topology], Lab]) -> Lab:
    """Two clusters of a gateway and a worker."""
    return make_lab(generate(name="doctor", clusters=2, gateways=1, workers=1, pods=1))


def findings(lab: Lab, node: str) -> list[Finding]:
    """Ask the doctor on a Node; return what it finds."""
    found = json.loads(lab.mcagent(node, "doctor", "-o", "json", check=False))
    result: list[Finding] = found["nodes"][0]["findings"]
    return result


def reasons(found: list[Finding], level: str = "failed") -> set[str]:
    """Return the reasons of a level."""
    return {one["reason"] for one in found if one["level"] == level}


@contextmanager
def injected(fault: Fault) -> Iterator[None]:
    """Have a fault for a while."""
    fault.inject()
    try:
        yield
    finally:
        fault.heal()


def named(lab: Lab, node: str, reason: str) -> list[Finding]:
    """Return what the doctor says once it names a reason."""
    last: list[list[Finding]] = []

    def told() -> bool:
        last[:] = [findings(lab, node)]
        return reason in reasons(last[0])

    began = time.monotonic()
    wait_until(told, f"{reason} on {node}", timeout=MINUTE, interval=0.5)
    print(f"{reason} on {node} after {time.monotonic() - began:.1f} s")
    return last[0]


@pytest.mark.timing
def test_a_healthy_lab_has_nothing_wrong(lab: Lab, settled: Settled) -> None:
    """Every check is made on gateways and workers, and none says ✗ or ⚠; the agents' own page says the same."""
    settled.wait()
    for _, node in lab.topology.nodes():
        began = time.monotonic()
        found = findings(lab, node.name)
        print(f"{node.name}: {time.monotonic() - began:.1f} s")
        bad = [one for one in found if one["level"] in {"failed", "warning"}]
        assert not bad, bad
        skipped = {one["check"] for one in found if one["level"] == "skipped"}
        assert not skipped, found
        (switch,) = (one["seen"] for one in found if one["check"] == "openvswitch")
        assert re.match(r"version \d+\.\d+", switch), switch
    pages = [json.loads(lab.post(node.name, "/doctor")[1])["findings"] for _, node in lab.topology.nodes()]
    assert [reasons(page) | reasons(page, "warning") for page in pages] == [set()] * len(pages)


def test_the_whole_lab_is_asked_from_one_machine(lab: Lab, settled: Settled) -> None:
    """`--all` reads a cluster's API and asks every agent; nothing is wrong."""
    settled.wait()
    node = lab.topology.clusters[0].gateways[0].name
    text = lab.mcagent(node, "doctor", "--all", "--agents", str(lab.agents_file()), "-o", "json", check=False)
    found = json.loads(text)
    assert [one["node"] for one in found["nodes"]] == sorted(one.name for _, one in lab.topology.nodes())
    every = [one for part in (*found["nodes"], *found["clusters"]) for one in part["findings"]]
    assert found["worst"] in {"ok", "skipped"}, [one for one in every if one["level"] not in {"ok", "skipped"}]


def test_a_blocked_port_is_named(lab: Lab, settled: Settled) -> None:
    """UDP 6081 is closed between two gateways: both say so, with peer and port, and nothing else is wrong."""
    settled.wait()
    here, there = (cluster.gateways[0] for cluster in lab.topology.clusters)
    with injected(faults.port_blocked(lab, here.name, there.name)):
        for node, peer in ((here, there), (there, here)):
            found = named(lab, node.name, "PortBlocked")
            assert reasons(found) == {"PortBlocked"}, found
            (one,) = (one for one in found if one["reason"] == "PortBlocked")
            assert str(peer.address) in one["subject"]
            assert "open UDP 6081" in one["do"]
    settled.wait()


def test_a_port_blocked_one_way_is_named_on_the_side_that_is_not_heard(lab: Lab, settled: Settled) -> None:
    """The sender learns by BFD that it is not heard; the other side, that nothing arrives."""
    settled.wait()
    here, there = (cluster.gateways[0].name for cluster in lab.topology.clusters)
    with injected(faults.port_blocked(lab, here, there, one_way=True)):
        assert reasons(named(lab, here, "OneWay")) == {"OneWay"}
        assert reasons(named(lab, there, "PortBlocked")) == {"PortBlocked"}
    settled.wait()


def test_a_wrong_mtu_is_named(lab: Lab, settled: Settled) -> None:
    """Large packets vanish between the gateways: the doctor says how large ones pass, and which mtu to set."""
    settled.wait()
    here, there = (cluster.gateways[0].name for cluster in lab.topology.clusters)
    with injected(faults.small_mtu(lab, here, there, 1400)):
        found = named(lab, here, "MtuTooLarge")
        assert reasons(found) == {"MtuTooLarge"}, found
        (one,) = (one for one in found if one["reason"] == "MtuTooLarge")
        assert "1400 pass" in one["seen"]
        assert "mtu: 1350" in one["do"]
    settled.wait()


def test_an_overlapping_cidr_is_named(lab: Lab, settled: Settled) -> None:
    """Another cluster claims this one's Pod CIDR: the object, the field and the way out are named."""
    settled.wait()
    east, west = lab.topology.clusters
    name = f"{west.name}-clusterinfo"
    spec = lab.api(east.name).get("ClusterInfoImport", name, NAMESPACE)["spec"]  # type: ignore[index]
    assert isinstance(spec, dict)
    lab.api(east.name).patch("ClusterInfoImport", name, {"spec": {"podCIDRs": [str(east.pod_cidr)]}}, NAMESPACE)
    try:
        found = named(lab, east.gateways[0].name, "OverlapsLocal")
        assert reasons(found) == {"OverlapsLocal"}, found
        (one,) = (one for one in found if one["reason"] == "OverlapsLocal")
        assert one["check"] == "cidrs"
        assert name in one["subject"]
        assert str(east.pod_cidr) in one["seen"]
        with injected(faults.agent_killed(lab, east.gateways[0].name)):  # then the doctor reads the objects itself
            found = findings(lab, east.gateways[0].name)
            assert reasons(found) == {"AgentSilent", "OverlapsLocal"}, found
    finally:
        lab.api(east.name).patch("ClusterInfoImport", name, {"spec": {"podCIDRs": spec["podCIDRs"]}}, NAMESPACE)
    settled.wait()


def test_a_dead_agent_and_switch_are_named(lab: Lab, settled: Settled) -> None:
    """The doctor needs neither: it says what is dead, and nothing of what follows from that."""
    settled.wait()
    node = lab.topology.clusters[0].gateways[0].name
    with injected(faults.agent_killed(lab, node)):
        assert reasons(findings(lab, node)) == {"AgentSilent"}
        with injected(faults.vswitchd_killed(lab, node)):
            assert reasons(findings(lab, node)) == {"AgentSilent", "VswitchdAway"}
    with injected(faults.loses_api(lab, node)):
        assert "ApiAway" in reasons(named(lab, node, "ApiAway"))
    settled.wait()
