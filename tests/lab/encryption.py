"""Encryption in a lab: what is on the wire, and what agents report of their peers."""

from __future__ import annotations

import struct
import threading
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Any

from devtools.lab.lab import Lab
from devtools.lab.topology import Cluster
from devtools.nodes import underlay
from devtools.traffic.capture import ETH_P_IP, ETH_P_IPV6, ETHERNET_HEADER, Capture

PORT = 51821
PORTS = range(PORT, PORT + 2)  # of a gateway with two devices
ROAMED = 40000  # the same behind an address translation


def encryption(lab: Lab, name: str) -> dict[str, Any]:
    """Return what a Node's agent says of encryption."""
    encryption = lab.status(name)["encryption"]
    assert isinstance(encryption, dict)
    return encryption


def established(lab: Lab, name: str) -> bool:
    """Tell whether a gateway has a session with every gateway of the other cluster."""
    peers = encryption(lab, name)["peers"]
    return len(peers) == len(lab.topology.clusters[0].gateways) and all(
        peer["state"] == "established" for peer in peers
    )


class Wire:
    """All that the Nodes of a lab send beyond their subnet, to the router; `clear` is what is no WireGuard."""

    def __init__(self, lab: Lab) -> None:
        self._captures = [
            (cluster, sort, Capture(lab.underlay, underlay.bridge(number), ethertype=ethertype))
            for number, cluster in enumerate(lab.topology.clusters, start=1)
            for ethertype, sort in ((ETH_P_IP, self._sort), (ETH_P_IPV6, self._sort6))
        ]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.encrypted = self.longest = 0
        self.clear: list[str] = []

    def _run(self) -> None:
        while not self._done.wait(0.02):
            self.look()

    def look(self) -> None:
        """Sort what has come."""
        for cluster, sort, capture in self._captures:
            frames = capture.frames()
            for frame in frames:
                sort(cluster, frame)
            frames.clear()

    def _sort(self, cluster: Cluster, frame: bytes) -> None:
        head = frame[ETHERNET_HEADER:]
        length, fragment = struct.unpack("!H2xH", head[2:8])
        source, destination = IPv4Address(head[12:16]), IPv4Address(head[16:20])
        if destination in cluster.subnet or destination in IPv4Network("224.0.0.0/4"):
            return
        header = 4 * (head[0] & 15)
        to = struct.unpack("!H", head[header + 2 : header + 4])[0]
        if head[9] == 1 and head[header] == 3:  # "unreachable", with the beginning of an encrypted packet in it
            head, header = head[header + 8 :], 20
            by, to = struct.unpack("!HH", head[header : header + 4])
            # What was sent before the rule "notrack" was there has a random port of the CNI's (AWS VPC CNI), and
            # conntrack, which remembers it, writes that into the quotation.
            to = PORT if by in PORTS else to
        if head[9] == 17 and to in (*PORTS, ROAMED) and not fragment & 0x3FFF:
            self.encrypted += 1
            self.longest = max(self.longest, length)
        else:
            self.clear.append(f"{source} > {destination} protocol {head[9]} port {to} length {length}")

    def _sort6(self, cluster: Cluster, frame: bytes) -> None:
        head = frame[ETHERNET_HEADER:]
        length = 40 + struct.unpack("!H", head[4:6])[0]
        source, destination = IPv6Address(head[8:24]), IPv6Address(head[24:40])
        near = destination.is_link_local or destination.is_multicast
        if near or (cluster.subnet6 is not None and destination in cluster.subnet6):
            return
        protocol, to = head[6], struct.unpack("!H", head[42:44])[0]
        if protocol == 58 and head[40] < 128:  # an error, with the beginning of an encrypted packet in it
            protocol, to = head[48 + 6], struct.unpack("!H", head[48 + 42 : 48 + 44])[0]
        if protocol == 17 and to in (*PORTS, ROAMED):  # a fragment has another next header (RFC 8200)
            self.encrypted += 1
            self.longest = max(self.longest, length)
        else:
            self.clear.append(f"{source} > {destination} protocol {protocol} port {to} length {length}")

    def __enter__(self) -> Wire:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._done.set()
        self._thread.join()
        self.look()
        for _, _, capture in self._captures:
            capture.__exit__(None, None, None)
