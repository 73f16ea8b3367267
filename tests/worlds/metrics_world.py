"""The metrics of an agent and of the controllers, of a ClusterSet of any size: real collectors on values."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from prometheus_client import CollectorRegistry

from mcagent.api.status import BackendStatus
from mcagent.controller.config import ControllerRole, ControllerSettings
from mcagent.controller.run import Controller
from mcagent.core.compile import compile_desired
from mcagent.core.failover.liveness import LivenessCause, PeerLiveness
from mcagent.core.failover.observations import group_of
from mcagent.core.tunnel_probes import ProbeState
from mcagent.kube.credentials import token_kubeconfig
from mcagent.model.config import TrafficEncryption
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.conntrack import TableUse
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import PeerKind, PortStatistics
from mcagent.model.dataplane.wireguard import WireGuardImplementation, WireGuardPeerStatus
from mcagent.model.informer_state import InformerState
from mcagent.model.node_state import PolicyRuleName
from mcagent.model.objects import ApiObject, Kind, WireGuardInfo
from mcagent.model.problem import Problem, Severity
from mcagent.observe.gateways import LiveReport
from mcagent.observe.metrics.agent import COUNTERS, Metrics, Sources
from mcagent.observe.report import Report
from mcagent.observe.wireguard import WireGuardReport
from tests.worlds.core_inputs import (
    HOME,
    cluster,
    config,
    endpoint,
    endpoint_slice,
    export,
    node,
    service,
    snapshot,
)

REMOTE = PeerKind.REMOTE
PROBED = ProbeState(answers=True, sent=10, full=True, counts=(0, 10, *ProbeState().counts[2:]), total=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the ClusterSet is, as this agent, a gateway, sees it. `nodes`: beside the three of `HOME`."""

    clusters: int = 1  # other ones
    gateways: int = 2  # of each
    nodes: int = 0
    services: int = 1
    rules: int = 1


def key(number: int) -> str:
    """Return the n-th public key."""
    return base64.b64encode(number.to_bytes(32, "big")).decode()


def agent_metrics(size: Size) -> Metrics:
    """Return the metrics of gateway g1, encrypting, with everything there that any of them is about."""
    facts = Facts(wireguard=WireGuardImplementation.KERNEL, wireguard_public_key=key(1))
    settings = config("g1", encryption=TrafficEncryption.WIREGUARD)
    desired = compile_desired(snapshot(*HOME, *_objects(size)), facts, settings).desired
    rules = {
        number: PolicyRuleName(policy=f"P/{number}", rule="r", direction="ingress", verdict="Drop")
        for number in range(size.rules)
    }
    odd = Problem(subject="Gateway a/b", path="", reason="HostBitsSet", message="odd", severity=Severity.WARNING)
    desired = replace(desired, state=replace(desired.state, policy_rules=rules), problems=(odd,))
    backends = tuple(BackendStatus(name=name) for name in Backend)
    report = Report(desired=desired, converged=True, backends=backends)
    ports = {port.name: port for port in report.tunnels}
    peers = {
        name: PeerLiveness(port=name, group=group_of(port), live=True, cause=LivenessCause.BFD, text="", since=0.0)
        for name, port in ports.items()
    }
    keys = [end.public_key for ends in desired.state.encryption.ends.values() for end in ends]
    metrics = Metrics()
    metrics.watch(
        Sources(
            report=lambda: report,
            informers=lambda: [InformerState(kind=kind, restarts={"closed": 1}) for kind in Kind],
            ready=lambda: True,
            ports=lambda: {
                name: PortStatistics(counters=dict.fromkeys(COUNTERS, 1), link_up=True) for name in ports
            },
            drops=lambda: {"miss": 1},
            nft_drops=lambda: {"to-tunnel": 1},
            live=lambda: LiveReport(ports=ports, peers=peers),
            probes=lambda: dict.fromkeys((one.name for one in ports.values() if one.peer_kind is REMOTE), PROBED),
            conntrack=lambda: TableUse(entries=1, limit=2),
            wireguard=lambda: WireGuardReport(
                peers=tuple(WireGuardPeerStatus(public_key=one, last_handshake=time.time()) for one in keys),
                key_created=1.0,
            ),
        )
    )
    return metrics


def _objects(size: Size) -> list[ApiObject]:
    objects: list[ApiObject] = [
        node(
            f"n{number}",
            f"192.0.{3 + number // 250}.{number % 250}",
            f"10.{20 + number // 250}.{number % 250}.0/24",
        )
        for number in range(size.nodes)
    ]
    for number in range(size.clusters):
        ends = tuple(
            f"203.{number // 250}.{number % 250}.{1 + gateway_number}" for gateway_number in range(size.gateways)
        )
        infos = tuple(
            WireGuardInfo(public_key=key(100 + number * size.gateways + gateway_number))
            for gateway_number in range(size.gateways)
        )
        info = cluster(f"c{number}", f"100.{64 + number // 250}.{number % 250}.0/24", gateways=ends)
        pairs = tuple(zip(info.gateway_ips, infos, strict=True))
        objects.append(replace(info, wireguard=infos[0], gateway_wireguard=pairs))
    for number in range(size.services):
        name, address = f"s{number}", str(ip_address("10.96.1.0") + number)
        serving = [endpoint(f"10.10.1.{1 + number % 250}")]
        objects += [service(name, address, 80), export(name), endpoint_slice(name, name, serving, ("", 8080))]
    return objects


def controller_metrics(role: ControllerRole, directory: Path) -> CollectorRegistry:
    """Return the metrics of a controller that has not been started: no object is known, nothing was written."""
    kubeconfig = directory / f"{role}.kubeconfig"
    kubeconfig.write_text(json.dumps(token_kubeconfig("https://127.0.0.1:1", b"", "none")), encoding="ascii")
    controller = Controller(
        role,
        ControllerSettings(kubeconfig=str(kubeconfig), listen="127.0.0.1:0", webhook_port=0, leader_elect=False),
    )
    controller.servers.close()
    return controller.registry


def series(registry: CollectorRegistry) -> Mapping[str, int]:
    """Return how many time series each family has."""
    return {family.name: len(family.samples) for family in registry.collect()}
