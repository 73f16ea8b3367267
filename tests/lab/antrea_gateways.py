"""Gateways that agents take for Antrea's."""

from __future__ import annotations

import json

from devtools.lab.lab import Lab
from devtools.nodes import netns

SILENCE = 1.0  # seconds without an answer that count as none
SOON = 40.0  # seconds until all agents have taken in a change, or know what a new peer is


def taken_for_antrea(lab: Lab, node: str) -> bool:
    """Tell whether a Node's agent says that west runs Antrea; one that does not answer in time does not."""
    code, text = lab.http(node, "/status")
    return code == 200 and json.loads(text)["summary"]["clusters"]["west"]["antrea"] is True


def echoed(lab: Lab, size: int, *, within: float) -> list[bool]:
    """Tell whether packets of so many bytes, not to be fragmented, are answered: from east to west, and back.

    One is sent each second, for `within` seconds.
    """
    east, west = (cluster.nodes[-1].pods[0] for cluster in lab.topology.clusters)
    argv = ["ping", "-n", "-c", "1", "-w", f"{within:.0f}", "-M", "do", "-s", str(size - 28)]
    ways = ((east, west), (west, east))
    done = (netns.execute(lab.namespace(a), [*argv, str(b.address)], check=False) for a, b in ways)
    return [process.returncode == 0 for process in done]
