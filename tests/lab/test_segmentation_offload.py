"""Segmentation, receive and checksum offload through tunnels: bulk TCP passes both gateways in large packets.

Only for the kernel datapath: the userspace datapath, which has no offload for tunnels, must do without.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import Node, generate
from devtools.nodes import netns
from devtools.traffic.capture import ETH_P_IP
from devtools.waiting import wait_until
from mcagent.dataplane.facts import kernel_datapath_exists
from mcagent.model.dataplane.resources import TunnelType
from tests.bench.packets.measuring import iperf, servers, works
from tests.bench.packets.paths import Way

pytestmark = [
    pytest.mark.datapath,
    pytest.mark.skipif(not kernel_datapath_exists(), reason="the userspace datapath has no offload for tunnels"),
]

UPLINK_MTU = 1500
TUNNEL_DEVICES = {TunnelType.GENEVE: "genev_sys_6081", TunnelType.VXLAN: "vxlan_sys_4789"}
SOL_PACKET, PACKET_AUXDATA = 263, 8  # linux/socket.h, linux/if_packet.h
TP_STATUS_CSUMNOTREADY = 1 << 3  # linux/if_packet.h: the checksum is left to the device that sends the packet
SO_RCVBUFFORCE, BUFFER_BYTES = 33, 16 << 20  # asm-generic/socket.h; room for 200 of the largest packets
LARGE = 4 * UPLINK_MTU  # bytes of a packet in the mean; segmentation offload makes packets of up to 64 KiB


@pytest.fixture(scope="module", params=[TunnelType.GENEVE, TunnelType.VXLAN], ids=str)
def lab(request: pytest.FixtureRequest, make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    """Two clusters of a gateway, with iperf3 in the Pods of the second one."""
    lab = make_lab(generate(workers=0, tunnel=request.param))
    with servers(lab):
        wait_until(lambda: works(path(lab)), "the path to work", timeout=60)
        yield lab


def path(lab: Lab) -> Way:
    """Return the path between Pods on the gateways."""
    east, west = (cluster.gateways[0].pods[0] for cluster in lab.topology.clusters)
    return Way(name="gateway-gateway", client=lab.namespace(east), address=str(west.address), nodes=())


def counters(lab: Lab, node: Node, direction: str) -> dict[str, tuple[int, int]]:
    """Return (bytes, packets) that the devices of a Node have sent ("tx") or received ("rx")."""
    shown = json.loads(netns.run(["ip", "-n", lab.namespace(node), "-s", "-j", "link", "show"]).stdout)
    stats = {link["ifname"]: link["stats64"][direction] for link in shown}
    return {name: (int(values["bytes"]), int(values["packets"])) for name, values in stats.items()}


def test_bulk_tcp_passes_tunnels_in_large_packets(lab: Lab) -> None:
    """No device on the way cuts the sender's packets: the uplink would, if it were a network card."""
    sender, receiver = (cluster.gateways[0] for cluster in lab.topology.clusters)
    ends = ((sender, "tx"), (receiver, "rx"))
    before = [counters(lab, node, direction) for node, direction in ends]
    iperf(path(lab), 1)
    means: dict[str, float] = {}
    for (node, direction), earlier in zip(ends, before, strict=True):
        for device in ("mc-gw0", TUNNEL_DEVICES[lab.topology.tunnel], "eth0"):
            pair = [earlier[device], counters(lab, node, direction)[device]]
            ((sent_bytes, packets),) = ((b[0] - a[0], b[1] - a[1]) for a, b in pairwise(pair))
            assert packets > 100, (node.name, device)
            means[f"{node.name} {device} {direction}"] = sent_bytes / packets
    assert {name: mean for name, mean in means.items() if mean < LARGE} == {}


def test_checksums_are_left_to_network_cards(lab: Lab) -> None:
    """The last Pod receives segments whose checksum nobody has computed, since they met no network card."""
    receiver = lab.topology.clusters[1].gateways[0].pods[0]

    def listen() -> socket.socket:
        listener = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
        listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        listener.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        listener.bind(("eth0", ETH_P_IP))
        listener.setblocking(False)
        return listener

    with netns.call(lab.namespace(receiver), listen) as listener:
        iperf(path(lab), 1)
        statuses = [status for size, status in packets_of(listener) if size > UPLINK_MTU]
    assert len(statuses) > 20
    assert all(status & TP_STATUS_CSUMNOTREADY for status in statuses)


def packets_of(listener: socket.socket) -> Iterator[tuple[int, int]]:
    """Yield the size and status (tpacket_auxdata in linux/if_packet.h) of the packets that a Pod has received."""
    while True:
        try:
            _, extra, _, (_, _, packet_type, *_) = listener.recvmsg(64, 256)
        except BlockingIOError:
            return
        if packet_type != socket.PACKET_OUTGOING:
            ((_, _, data),) = extra
            status, size = struct.unpack_from("=II", data)
            yield size, status
