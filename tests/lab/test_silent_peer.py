"""A gateway of another cluster that never answers: the commonest fault of a first installation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from devtools.lab import faults
from devtools.lab.faults import BRIDGE, Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, Topology, generate
from devtools.traffic import traffic
from devtools.waiting import wait_until

pytestmark = pytest.mark.packets

REPORTED = 60.0  # seconds


def test_a_peer_that_never_answers_is_reported(make_lab: Callable[[Topology], Lab]) -> None:
    """A problem names the object and the causes, and `mcagent gateways` says so; both go when packets come."""
    with make_lab(generate(name="silent", clusters=2, gateways=1, workers=1, pods=1)) as lab:
        settled = Settled(lab)
        settled.wait()
        east, west = lab.topology.clusters
        own_gateway, far_gateway = east.gateways[0].name, west.gateways[0].name

        def silent() -> list[str]:
            problems: Any = lab.status(own_gateway)["problems"]
            return [problem["subject"] for problem in problems if problem["reason"] == "PeerSilent"]

        assert silent() == []
        fault = faults.loses(lab, own_gateway, far_gateway)
        fault.inject()
        try:
            lab.stop_agent(own_gateway)
            (tunnel,) = (
                name for name in lab.ovs(own_gateway).vsctl("list-ports", BRIDGE).split() if name[:4] == "mcr-"
            )
            lab.ovs(own_gateway).vsctl("del-port", BRIDGE, tunnel)  # with it goes what is known of the peer
            lab.start_agent(own_gateway)
            lab.wait_ready(own_gateway)
            client, server = lab.namespace(east.workers[0].pods[0]), west.workers[0].pods[0]
            with traffic.udp_socket(client, server.address, POD_PORT) as sock:

                def silent_after_traffic() -> list[str]:
                    sock.send(b"x" * 64)  # an idle peer is no problem
                    return silent()

                wait_until(silent_after_traffic, "a problem of the silent peer", timeout=REPORTED, interval=0.5)
            assert silent()[0].endswith(f"{west.name}-clusterinfo")
        finally:
            fault.heal()
        wait_until(lambda: not silent(), "the end of the problem", timeout=REPORTED, interval=0.5)
        settled.wait()


def test_a_gateway_that_receives_none_of_our_packets_is_avoided(make_lab: Callable[[Topology], Lab]) -> None:
    """Its BFD packets arrive, ours are lost, from the first one on: connections use the other gateway."""
    with make_lab(generate(name="oneway", clusters=2, gateways=2, workers=1, pods=1)) as lab:
        settled = Settled(lab)
        settled.wait()
        east, west = lab.topology.clusters
        gateways, deaf = [node.name for node in east.gateways], west.gateways[0]
        blocked = [faults.port_blocked(lab, gateway, deaf.name, one_way=True) for gateway in gateways]
        for fault in blocked:
            fault.inject()
        try:
            for gateway in gateways:
                forget(lab, gateway, str(deaf.address))
            wait_until(
                lambda: all(is_judged(lab, gateway, str(deaf.address)) for gateway in gateways),
                "a verdict on the new tunnel",
                timeout=REPORTED,
            )
            client, server = lab.namespace(east.workers[0].pods[0]), west.workers[0].pods[0]
            wait_until(
                lambda: all(answered(client, str(server.address)) for _ in range(40)),
                "an answer to each of 40 clients",
                timeout=REPORTED,
            )
        finally:
            for fault in blocked:
                fault.heal()
        settled.wait()


def forget(lab: Lab, gateway: str, peer: str) -> None:
    """Have a gateway forget what it knows of a peer: its tunnel is created again."""
    lab.stop_agent(gateway)
    ovs = lab.ovs(gateway)
    names = ovs.vsctl("--bare", "--columns=name", "find", "Interface", f"options:remote_ip={peer}").split()
    for name in names:
        ovs.vsctl("del-port", BRIDGE, name)
    lab.start_agent(gateway)
    lab.wait_ready(gateway)


def is_judged(lab: Lab, gateway: str, peer: str) -> bool:
    """Tell whether a gateway has a half-up session with a peer, and has decided whether to use it."""
    columns = ("--bare", "--columns=bfd_status", "find", "Interface", f"options:remote_ip={peer}")
    status: Any = lab.status(gateway)["gateways"]
    (reported,) = (item for cluster in status for item in cluster["gateways"] if item["address"] == peer)
    return " state=init" in lab.ovs(gateway).vsctl(*columns) and not reported["damped"]


def answered(client: str, server: str) -> bool:
    """Tell whether a new client's datagram is answered, the third at the latest."""
    with traffic.udp_socket(client, server, POD_PORT) as sock:
        sock.settimeout(0.5)
        for _ in range(3):
            sock.send(b"x" * 64)
            with suppress(TimeoutError, ConnectionRefusedError):
                return bool(sock.recv(2048))
    return False
