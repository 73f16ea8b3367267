"""What settings of CNIs do to packets, and that the doctor names wrong ones: Calico's IPAM, by its profile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from devtools.errors import LabError
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Cni, generate
from devtools.nodes import netns
from devtools.traffic import traffic
from devtools.waiting import wait_until


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    """Two clusters of one gateway and one worker, whose agents look for Pods in the Nodes' Pod CIDRs."""
    plain = generate(cni=Cni.CALICO)
    clusters = tuple(replace(cluster, config={}) for cluster in plain.clusters)
    with make_lab(replace(plain, clusters=clusters)) as lab:
        yield lab


def findings(lab: Lab, node: str, *flags: str) -> dict[str, dict[str, str]]:
    """Return what the doctor finds on a Node, by reason; checks without faults by their name."""
    report = json.loads(lab.mcagent(node, "doctor", "-o", "json", *flags, check=False))
    return {finding["reason"] or finding["check"]: finding for finding in report["nodes"][0]["findings"]}


@pytest.mark.datapath
def test_pods_outside_of_their_nodes_cidrs_are_told_and_found_one_by_one(lab: Lab) -> None:
    """No Pod path works, the doctor names the setting, and with it every path works and nothing is wrong."""
    east, west = lab.topology.clusters
    gateway, client = west.gateways[0].name, lab.namespace(east.workers[0].pods[0])
    targets = [(west.services[0].cluster_ip, 80), *((node.pods[0].address, POD_PORT) for node in west.nodes)]
    for address, port in targets:
        with pytest.raises(LabError):
            traffic.tcp(client, address, port, timeout=1)
    reported = findings(lab, gateway)
    assert reported["cni"]["seen"] == "Calico"
    assert reported["PodsOutsideCIDRs"]["level"] == "failed"
    assert "podRouting: perPod" in reported["PodsOutsideCIDRs"]["do"]
    for _, node in lab.topology.nodes():
        lab.stop_agent(node.name)
        lab.start_agent(node.name, {"podRouting": "perPod"})
    lab.wait_ready()
    for address, port in targets:
        reply = traffic.tcp(client, address, port)
        assert reply.source == str(east.workers[0].pods[0].address)
    wait_until(lambda: "PodsOutsideCIDRs" not in findings(lab, gateway), "the doctor to be content", timeout=30)


@pytest.fixture(scope="module")
def plain(make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    """Two clusters of flannel, whose Nodes other programs are added to."""
    with make_lab(generate()) as lab:
        yield lab


AFTER_NETFILTER = """
table netdev translate {
  chain egress {
    type filter hook egress device "mc-gw0" priority 0;
    ip saddr set 169.254.77.1
  }
}
"""
REPLIES_ELSEWHERE = """
table ip replies {
  chain prerouting {
    type filter hook prerouting priority mangle;
    ct direction reply meta mark set 0x1
  }
}
"""
POLICY = """
table ip deny {
  chain forward {
    type filter hook forward priority 0;
    iifname "mc-gw0" udp sport 9 drop
  }
}
"""


def test_a_probe_shows_what_other_programs_do_with_packets_of_a_pod(plain: Lab) -> None:
    """Translation after netfilter, replies by another way, a policy, and no way at all: each has its name."""
    worker = plain.topology.clusters[1].workers[0]
    node, pod = plain.namespace(worker), worker.pods[0]
    flags = ("--probe", f"/run/netns/{plain.namespace(pod)}")

    def reasons() -> set[str]:
        reported = findings(plain, worker.name, *flags)
        assert "pod-path" in {finding["check"] for finding in reported.values()}
        return {reason for reason, finding in reported.items() if finding["check"] == "pod-path"}

    assert "pod-path" not in findings(plain, worker.name)
    assert reasons() == {"pod-path"}  # fine
    for rules, table, reason in (
        (AFTER_NETFILTER, ("netdev", "translate"), "PodSourceTranslated"),
        (POLICY, ("ip", "deny"), "PodNotReached"),
    ):
        netns.execute(node, ["nft", "-f", "-"], stdin=rules)
        assert reasons() == {reason}
        netns.execute(node, ["nft", "delete", "table", *table])
    netns.execute(node, ["nft", "-f", "-"], stdin=REPLIES_ELSEWHERE)
    netns.ip(node, "rule", "add", "priority", "299", "fwmark", "0x1/0x1", "lookup", "main")
    assert reasons() == {"PodAnswersElsewhere"}
    netns.ip(node, "rule", "add", "priority", "298", "from", str(pod.address), "lookup", "main")
    assert reasons() == {"PodPacketsElsewhere", "PodAnswersElsewhere"}
