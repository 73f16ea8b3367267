"""What the queues of Open vSwitch dropped: packets that were lost before the dataplane saw them.

The userspace datapath reads a Node's devices from packet sockets. What comes while ovs-vswitchd does something
else waits there, 208 KiB of it (`net.core.rmem_default`), a few hundred packets; the rest is dropped (packet(7),
`tp_drops`). The kernel datapath asks ovs-vswitchd about packets that no flow fits, by queues as well; what finds
them full is "lost" in `dpctl/show` (ovs-dpctl(8)).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from devtools.lab.running import RunningLab
from devtools.nodes import netns

# Each socket with its cookie and its memory (`-e`, `-m`); see ss(8): d is what was dropped.
_SOCKETS = ("ss", "-0", "-a", "-n", "-e", "-m", "-H")
_SOCKET = re.compile(
    r"\*:(?P<device>\S+)\s.*?\bsk:(?P<cookie>[0-9a-f]+).*?skmem:\([^)]*,d(?P<dropped>\d+)\)", re.DOTALL
)
_LOST = re.compile(r"\blost:(\d+)")


def dropped(lab: RunningLab) -> dict[tuple[str, str], int]:
    """Return how many packets each queue of each Node has dropped since it is there.

    Keys: Node, cookie of the packet socket (another one whenever ovs-vswitchd was started) or "upcalls". Raises
    LabError.
    """
    counts: dict[tuple[str, str], int] = {}
    for _, node in lab.topology.nodes():
        for cookie, number in of_namespace(lab.namespace(node)).items():
            counts[node.name, cookie] = number
        losses = _LOST.findall(lab.ovs(node.name).appctl("dpctl/show"))
        counts[node.name, "upcalls"] = sum(map(int, losses))
    return counts


def of_namespace(namespace: str) -> dict[str, int]:
    """Return what each packet socket bound to a device has dropped, by its cookie. Raises LabError."""
    return {
        match["cookie"]: int(match["dropped"])
        for match in _SOCKET.finditer(netns.execute(namespace, _SOCKETS).stdout)
        if match["device"] != "*"  # of all devices: a packet capture
    }


def since(before: Mapping[tuple[str, str], int], now: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """Return by Node what was dropped in between, by queues that are still there; Nodes without are left out."""
    difference: Counter[str] = Counter()
    # Only what grew is left: upcalls of a userspace datapath that was started again are fewer.
    for (node, _), increase in (Counter(now) - Counter(before)).items():
        difference[node] += increase
    return dict(difference)
