"""Pods behind the bridge of a CNI, which nothing binds to their addresses: what policies by label make of them."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network
from typing import Any

import pytest

from devtools.lab.api import Json
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Node, generate
from devtools.nodes import netns
from devtools.nodes.node import POD_NEXT_HOP, pod_device
from devtools.traffic.traffic import PATIENCE
from devtools.waiting import wait_until
from tests.worlds.policy_lab import IN_TIME, SILENCE, bring_up, network_policy, of_east, policy, tried

__all__ = ["policy"]
pytestmark = [pytest.mark.packets, pytest.mark.datapath]

BRIDGE, BRIDGE_MAC = "cni0", "0e:03:00:00:00:01"
GOOD, BAD = 0, 1  # places of the clients on a Node


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters; the Pods of a worker of the first one are behind a bridge, as with flannel's CNI plug-in."""
    lab = bring_up(make_lab, generate(gateways=1, workers=1, pods=2))
    put_behind_bridge(lab, lab.topology.clusters[0].workers[0])
    return lab


def put_behind_bridge(lab: Lab, node: Node) -> None:
    """Let a Node reach its Pods through a bridge with the Node's Pod CIDR, instead of each by a device."""
    space, cidr = lab.namespace(node), IPv4Network((node.pods[0].address, 24), strict=False)
    netns.ip(space, "link", "add", BRIDGE, "address", BRIDGE_MAC, "type", "bridge")
    netns.ip(space, "link", "set", BRIDGE, "up")
    netns.ip(space, "address", "add", f"{cidr[1]}/{cidr.prefixlen}", "dev", BRIDGE)
    for pod in node.pods:
        netns.ip(space, "route", "del", f"{pod.address}/32", "dev", pod_device(node, pod))
        netns.ip(space, "link", "set", pod_device(node, pod), "master", BRIDGE)
        next_hop = (
            "neighbour",
            "replace",
            str(POD_NEXT_HOP),
            "lladdr",
            BRIDGE_MAC,
            "dev",
            "eth0",
            "nud",
            "permanent",
        )
        netns.ip(lab.namespace(pod), *next_hop)


def restart(lab: Lab, node: Node, mode: str) -> None:
    """Start the agent of a Node with a value of unverifiedLabels; return when it reports what it sends."""
    lab.stop_agent(node.name)
    lab.start_agent(node.name, {"unverifiedLabels": mode})
    lab.wait_ready(node.name)

    def reported() -> bool:
        problems: Any = lab.status(node.name)["problems"]
        messages = [problem["message"] for problem in problems if problem["reason"] == "LabelsUnverified"]
        return [("withhold" in message) for message in messages] == [mode == "withhold"]

    wait_until(reported, f"LabelsUnverified with {mode}", timeout=IN_TIME)


def test_a_policy_by_label_takes_pods_of_withheld_labels_for_pods_without(
    lab: Lab, policy: Callable[[str, Json], None]
) -> None:
    """They are let in by their labels with `send`, and not with `withhold`; those of other Nodes are in both."""
    east, west = lab.topology.clusters
    worker, gateway = east.workers[0], east.gateways[0]
    server = str(west.workers[0].pods[0].address)

    def becomes(node: Node, place: int, verdict: str) -> None:
        space = lab.namespace(node.pods[place])
        within = PATIENCE if verdict == "open" else SILENCE
        condition = f"{node.pods[place].name} to be {verdict}"
        wait_until(lambda: tried(space, server, POD_PORT, within=within) == verdict, condition, timeout=IN_TIME)

    restart(lab, worker, "send")
    becomes(worker, BAD, "open")
    policy("west", network_policy("some", {"from": [of_east("good")]}))
    for mode, verdict in (("send", "open"), ("withhold", "silent"), ("send", "open")):
        restart(lab, worker, mode)
        becomes(worker, BAD, "silent")
        becomes(worker, GOOD, verdict)
        becomes(gateway, GOOD, "open")
        becomes(gateway, BAD, "silent")
