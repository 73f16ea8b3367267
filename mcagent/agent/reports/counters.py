"""Counters of the backends: packets through tunnels, drops of the pipeline and nft by reason, peers of WireGuard.

Read on request, from any thread. A backend that cannot be read is logged, and its counters are empty or None.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from flows.pipeline.declaration import COOKIES, DROP_POLICY, FOR_CLUSTER, FOR_POLICY, FOR_SERVICE, PIPELINE
from flows.pipeline.registers import ORIGIN_NODE, ORIGIN_REMOTE
from flows.pipeline.tables import EXIT, FRAGMENTS, SERVICE, SOURCE
from mcagent.core.failover.draining import Packets
from mcagent.core.fragments import kernel, own_endpoints, tunnel_guard
from mcagent.dataplane.connection_table import Control, table_use
from mcagent.model.dataplane.conntrack import TableUse
from mcagent.model.dataplane.resources import PortStatistics
from mcagent.model.errors import BackendError
from mcagent.observe.report import Report
from mcagent.observe.wireguard import WireGuardReport

if TYPE_CHECKING:
    from mcagent.dataplane.nft.backend import NftBackend
    from mcagent.dataplane.openflow.backend import OpenFlowBackend
    from mcagent.dataplane.ovsdb.backend import OvsdbBackend
    from mcagent.dataplane.wireguard.backend import WireGuardBackend

log = logging.getLogger(__name__)
T = TypeVar("T")

# Reasons of flows that drop, by the category in their cookie. Exactly these categories have the highest bit set.
DROP_REASONS = {category.number: category.name for category in PIPELINE.categories if category.drops}
# By chain.
NFT_DROP_REASONS = {
    **tunnel_guard.DROPS,
    kernel.CLOSED_NODES: "closed-node",
    kernel.POD_SOURCES: "pod-source",
    own_endpoints.CHAIN: "policy-own-endpoint",
    kernel.REJECTED: "unanswered",
}
DROP_COOKIES = f"cookie={COOKIES.owner << 48 | 0x80 << 40:#x}/{0xFFFF << 48 | 0x80 << 40:#x}"
RULE_COOKIES = tuple(
    f"cookie={COOKIES.cookie(category):#x}/{0xFFFFFF << 40:#x}" for category in (FOR_POLICY, DROP_POLICY)
)
# Flows that choose the endpoint of a connection to an exported Service; its other flows are in other tables.
SERVICE_FLOWS = f"table={SERVICE.number},cookie={COOKIES.cookie(FOR_SERVICE):#x}/{0xFFFFFF << 40:#x}"
OVER_LIMIT = "over-limit"  # dropped by meters: of one cluster above `newConnections` or `fragments`


def port_statistics(ovsdb: OvsdbBackend) -> Mapping[str, PortStatistics] | None:
    """Return Open vSwitch' counters of the bridge's ports by name; None: unknown."""
    return _read(ovsdb.statistics)


def drop_counts(openflow: OpenFlowBackend) -> Mapping[str, int]:
    """Return the packets that the pipeline dropped, by reason, since the flows were added."""
    statistics = _read(lambda: (openflow.flow_stats(DROP_COOKIES), openflow.over_limit()))
    if statistics is None:
        return {}
    packets_by_cookie, over_limit = statistics
    counts = dict.fromkeys(DROP_REASONS.values(), 0)
    for cookie, packets in packets_by_cookie.items():
        parts = COOKIES.split(cookie)
        if parts is not None and parts[0] in DROP_REASONS:
            counts[DROP_REASONS[parts[0]]] += packets
    return {**counts, OVER_LIMIT: over_limit}


def nft_drop_counts(nft: NftBackend) -> Mapping[str, int]:
    """Return the packets that our nft chains dropped, by reason, since the chains were last changed."""
    counts_by_chain = _read(nft.packet_counts) or {}
    return {
        reason: counts_by_chain[chain] for chain, reason in NFT_DROP_REASONS.items() if chain in counts_by_chain
    }


def rule_counts(openflow: OpenFlowBackend) -> Mapping[int, int] | None:
    """Return the packets that each policy rule decided on, by the rule's number, since its flows were added.

    None: unknown.
    """
    statistics = _read(lambda: [openflow.flow_stats(cookies) for cookies in RULE_COOKIES])
    if statistics is None:
        return None
    counts: Counter[int] = Counter()
    for cookie, packets in (item for packets_by_cookie in statistics for item in packets_by_cookie.items()):
        counts[cookie & 0xFFFFFFFF] += packets
    return counts


def service_counts(openflow: OpenFlowBackend) -> Mapping[int, int] | None:
    """Return the packets for which an endpoint was chosen, by the ID of an exported Service's port.

    They are the first packets of connections since the port's flows were added; conntrack handles the others.
    None: unknown.
    """
    packets_by_cookie = _read(lambda: openflow.flow_stats(SERVICE_FLOWS))
    if packets_by_cookie is None:
        return None
    return {cookie & 0xFFFFFFFF: packets for cookie, packets in packets_by_cookie.items()}


def forwarded_packets(openflow: OpenFlowBackend) -> Packets | None:
    """Return the packets that other clusters, and Nodes of this one, sent through this gateway; None: unknown.

    Packets of other gateways of this cluster are not counted: they are for this Node's own Pods.
    """

    def received(table: int, origin: int) -> int:
        return sum(openflow.flow_stats(f"table={table},reg0={origin}/0xf").values())

    return _read(
        lambda: Packets(
            remote=received(FRAGMENTS.number, ORIGIN_REMOTE), local=received(SOURCE.number, ORIGIN_NODE)
        )
    )


def packets_to_clusters(openflow: OpenFlowBackend, clusters: Iterable[int]) -> Mapping[int, int]:
    """Return the packets that this gateway has sent to remote clusters, by their numbers; without BFD and probes.

    They are counted since the cluster's flows were added. Raises BackendError.
    """
    cookies = {COOKIES.cookie(FOR_CLUSTER, number): number for number in clusters}
    counts = openflow.packet_counts(EXIT.number, tuple(cookies))
    return {cookies[cookie]: packets for cookie, packets in counts.items()}


def wireguard_report(wireguard: WireGuardBackend) -> WireGuardReport:
    """Read the peers of all devices, the age of the key and restarts of wireguard-go."""

    def read() -> WireGuardReport:
        peers = wireguard.statuses()
        created = wireguard.keys().current.created if peers else 0.0
        return WireGuardReport(peers=peers, key_created=created, restarts=wireguard.restarts, now=time.time())

    return _read(read) or WireGuardReport(restarts=wireguard.restarts, now=time.time(), complete=False)


def conntrack_use(control: Control, report: Report) -> TableUse | None:
    """Return the use of the bridge's connection tracking table; None without bridge or table."""
    datapath = report.datapath
    return None if datapath is None else _read(lambda: table_use(control, datapath))


def _read(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except BackendError as error:
        log.debug("%s", error)
        return None
