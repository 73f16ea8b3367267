"""`mcagent gateways` in a lab, as tests ask it."""

from __future__ import annotations

import json
from typing import Any

from devtools.lab.lab import Lab
from devtools.lab.topology import Node
from devtools.waiting import wait_until


def gateways(lab: Lab, node: str) -> list[dict[str, Any]]:
    """Return the gateways of all clusters as a Node's agent tells them."""
    document = json.loads(lab.mcagent(node, "gateways", "-o", "json", check=False))
    return [gateway for cluster in document["clusters"] for gateway in cluster["gateways"]]


def told(lab: Lab, node: str, name: str) -> dict[str, Any]:
    """Return what a Node's agent tells of one gateway; nothing while it knows none of that name."""
    return next((gateway for gateway in gateways(lab, node) if gateway["name"] == name), {})


def wait_for_bfd(lab: Lab, *nodes: Node) -> None:
    """Wait until all gateways that these Nodes watch answer BFD: one that never did is not taken for lost."""

    def all_answer() -> bool:
        states = (gateway for node in nodes for gateway in gateways(lab, node.name))
        return all(gateway["live"] and gateway["bfd"] in ("", "answers") for gateway in states)

    wait_until(all_answer, "BFD between all", timeout=30)
