"""A gateway of another cluster that never answers: the commonest fault of a first installation."""

from __future__ import annotations

from collections.abc import Callable
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
