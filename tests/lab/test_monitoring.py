"""What a real Prometheus sees of agents that forward packets: series, connections, a cluster that is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devtools.lab import faults
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import generate
from devtools.traffic import traffic
from devtools.waiting import wait_until
from tests.prometheus.server import Prometheus, find_programs, names

CONNECTIONS = 7
# What a lab where all is well, without controllers, encryption and policies, does not have.
NOT_HERE = ("mcagent_controller_", "mcagent_wireguard_", "mcagent_problems")


def opened(lab: Lab) -> int:
    """Return the connections to exported Services of the second cluster that its gateways counted."""
    opened_at = 0.0
    for node in lab.topology.clusters[1].gateways:
        page = lab.http(node.name, "/metrics")[1]
        counts = re.findall(r"^mcagent_exported_connections_total\{.*\} (\S+)$", page, re.MULTILINE)
        opened_at += sum(map(float, counts))
    return round(opened_at)


def test_prometheus_sees_a_cluster_that_is_lost(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    """Each connection is counted once; alerts are quiet before the gateway loses the cluster, and after."""
    find_programs()
    with make_lab(generate()) as lab:
        Settled(lab).wait()
        east, west = lab.topology.clusters
        gateway, client = east.gateways[0], lab.namespace(east.workers[0].pods[0])
        before = opened(lab)
        for _ in range(CONNECTIONS):
            traffic.tcp(client, west.services[0].cluster_ip, 80)
        wait_until(lambda: opened(lab) == before + CONNECTIONS, "the connections to be counted", timeout=10)
        exports: Any = lab.status(west.gateways[0].name)["exports"]  # what `mcagent top --by service` reads
        assert sum(export["connections"] for export in exports.values()) == opened(lab)
        targets = {"agent": "127.0.0.1:10351"}
        server = Prometheus(tmp_path, targets, port=9090, namespace=lab.namespace(gateway))
        try:
            all_names = {name for name in names() if not name.startswith(NOT_HERE)}
            wait_until(lambda: server.query("up == 1") and not server.missing(all_names), "all series", timeout=60)
            wait_until(lambda: not server.alerts(), "no alert", timeout=30)
            fault = faults.loses_cluster(lab, gateway.name, west)
            fault.inject()
            try:
                alerts = {"McagentClusterLost", "McagentGatewayDead"}
                wait_until(
                    lambda: server.alerts() == alerts, "alerts of the lost cluster, and no others", timeout=30
                )
            finally:
                fault.heal()
            wait_until(lambda: not alerts & server.alerts(), "the end of the alerts", timeout=60)
        finally:
            server.close()
