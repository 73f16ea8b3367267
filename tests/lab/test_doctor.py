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
    document = json.loads(lab.mcagent(node, "doctor", "-o", "json", check=False))
    result: list[Finding] = document["nodes"][0]["findings"]
    return result


def reasons(findings: list[Finding], level: str = "failed") -> set[str]:
    """Return the reasons of a level."""
    return {finding["reason"] for finding in findings if finding["level"] == level}


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
        all_findings = findings(lab, node.name)
        print(f"{node.name}: {time.monotonic() - began:.1f} s")
        bad = [finding for finding in all_findings if finding["level"] in {"failed", "warning"}]
        assert not bad, bad
        skipped = {finding["check"] for finding in all_findings if finding["level"] == "skipped"}
        assert not skipped, all_findings
        (switch,) = (finding["seen"] for finding in all_findings if finding["check"] == "openvswitch")
        assert re.match(r"version \d+\.\d+", switch), switch
    pages = [json.loads(lab.post(node.name, "/doctor")[1])["findings"] for _, node in lab.topology.nodes()]
    assert [reasons(page) | reasons(page, "warning") for page in pages] == [set()] * len(pages)


def test_the_whole_lab_is_asked_from_one_machine(lab: Lab, settled: Settled) -> None:
    """`--all` reads a cluster's API and asks every agent; nothing is wrong."""
    settled.wait()
    node = lab.topology.clusters[0].gateways[0].name
    text = lab.mcagent(node, "doctor", "--all", "--agents", str(lab.agents_file()), "-o", "json", check=False)
    report = json.loads(text)
    assert [finding["node"] for finding in report["nodes"]] == sorted(
        finding.name for _, finding in lab.topology.nodes()
    )
    findings = [finding for part in (*report["nodes"], *report["clusters"]) for finding in part["findings"]]
    assert report["worst"] in {"ok", "skipped"}, [
        finding for finding in findings if finding["level"] not in {"ok", "skipped"}
    ]


def test_a_blocked_port_is_named(lab: Lab, settled: Settled) -> None:
    """UDP 6081 is closed between two gateways: both say so, with peer and port, and nothing else is wrong."""
    settled.wait()
    near, far = (cluster.gateways[0] for cluster in lab.topology.clusters)
    with injected(faults.port_blocked(lab, near.name, far.name)):
        for node, peer in ((near, far), (far, near)):
            findings = named(lab, node.name, "PortBlocked")
            assert reasons(findings) == {"PortBlocked"}, findings
            (finding,) = (finding for finding in findings if finding["reason"] == "PortBlocked")
            assert str(peer.address) in finding["subject"]
            assert "open UDP 6081" in finding["do"]
    settled.wait()


def test_a_port_blocked_one_way_is_named_on_the_side_that_is_not_heard(lab: Lab, settled: Settled) -> None:
    """The sender learns by BFD that it is not heard; the other side, that nothing arrives."""
    settled.wait()
    near, far = (cluster.gateways[0].name for cluster in lab.topology.clusters)
    with injected(faults.port_blocked(lab, near, far, one_way=True)):
        assert reasons(named(lab, near, "OneWay")) == {"OneWay"}
        assert reasons(named(lab, far, "PortBlocked")) == {"PortBlocked"}
    settled.wait()


def test_a_wrong_mtu_is_named(lab: Lab, settled: Settled) -> None:
    """Large packets vanish between the gateways: the doctor says how large ones pass, and which mtu to set."""
    settled.wait()
    near, far = (cluster.gateways[0].name for cluster in lab.topology.clusters)
    with injected(faults.small_mtu(lab, near, far, 1400)):
        findings = named(lab, near, "MtuTooLarge")
        assert reasons(findings) == {"MtuTooLarge"}, findings
        (finding,) = (finding for finding in findings if finding["reason"] == "MtuTooLarge")
        assert "1400 pass" in finding["seen"]
        assert "mtu: 1350" in finding["do"]
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
        all_findings = named(lab, east.gateways[0].name, "OverlapsLocal")
        assert reasons(all_findings) == {"OverlapsLocal"}, all_findings
        (finding,) = (finding for finding in all_findings if finding["reason"] == "OverlapsLocal")
        assert finding["check"] == "cidrs"
        assert name in finding["subject"]
        assert str(east.pod_cidr) in finding["seen"]
        with injected(faults.agent_killed(lab, east.gateways[0].name)):  # then the doctor reads the objects itself
            all_findings = findings(lab, east.gateways[0].name)
            assert reasons(all_findings) == {"AgentSilent", "OverlapsLocal"}, all_findings
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
