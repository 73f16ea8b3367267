"""What facilities count: packets through tunnels, dropped by the pipeline and nft and why, peers of WireGuard.

Read when somebody asks, from any thread; there is nothing while the facility cannot be asked.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from flows.pipeline.declaration import COOKIES, DROP_POLICY, FOR_POLICY, FOR_SERVICE, PIPELINE
from flows.pipeline.registers import ORIGIN_NODE, ORIGIN_REMOTE
from flows.pipeline.tables import SERVICE, SOURCE
from mcagent.core.failover.draining import Packets
from mcagent.core.fragments import kernel, tunnel_guard
from mcagent.model.errors import BackendError
from mcagent.model.resources import PortStatistics
from mcagent.observe.wireguard import WireGuardReport

if TYPE_CHECKING:
    from mcagent.dataplane.nft.backend import NftBackend
    from mcagent.dataplane.openflow.backend import OpenFlowBackend
    from mcagent.dataplane.ovsdb.backend import OvsdbBackend
    from mcagent.dataplane.wireguard.backend import WireGuardBackend

log = logging.getLogger(__name__)
T = TypeVar("T")

# Flows that drop, by the category in their cookie. All these categories have its highest bit, and no others do.
DROP_REASONS = {category.number: category.name for category in PIPELINE.categories if category.drops}
# By chain.
NFT_DROP_REASONS = {**tunnel_guard.DROPS, kernel.CLOSED_NODES: "closed-node", kernel.REJECTED: "unanswered"}
DROP_COOKIES = f"cookie={COOKIES.owner << 48 | 0x80 << 40:#x}/{0xFFFF << 48 | 0x80 << 40:#x}"
RULE_COOKIES = tuple(
    f"cookie={COOKIES.cookie(category):#x}/{0xFFFFFF << 40:#x}" for category in (FOR_POLICY, DROP_POLICY)
)
# Of an exported Service, what gives a connection its endpoint; what else it has is in other tables.
SERVICE_FLOWS = f"table={SERVICE.number},cookie={COOKIES.cookie(FOR_SERVICE):#x}/{0xFFFFFF << 40:#x}"
OVER_LIMIT = "over-limit"  # by meters: more new connections than `newConnections` of one cluster


def port_statistics(ovsdb: OvsdbBackend) -> Mapping[str, PortStatistics]:
    """Return Open vSwitch' counters of our ports by name."""
    return _read(ovsdb.statistics) or {}


def drop_counts(openflow: OpenFlowBackend) -> Mapping[str, int]:
    """Return how many packets the pipeline dropped, by reason, since the flows were added."""
    found = _read(lambda: (openflow.flow_stats(DROP_COOKIES), openflow.over_limit()))
    if found is None:
        return {}
    counts = dict.fromkeys(DROP_REASONS.values(), 0)
    for cookie, packets in found[0].items():
        parts = COOKIES.split(cookie)
        if parts is not None and parts[0] in DROP_REASONS:
            counts[DROP_REASONS[parts[0]]] += packets
    return {**counts, OVER_LIMIT: found[1]}


def nft_drop_counts(nft: NftBackend) -> Mapping[str, int]:
    """Return how many packets our nft chains dropped, by reason, since the chains were last changed."""
    found = _read(nft.counted) or {}
    return {reason: found[chain] for chain, reason in NFT_DROP_REASONS.items() if chain in found}


def rule_counts(openflow: OpenFlowBackend) -> Mapping[int, int]:
    """Return how many packets each rule of a policy decided on, by its number, since its flows were added."""
    found = _read(lambda: [openflow.flow_stats(cookies) for cookies in RULE_COOKIES]) or []
    counts: Counter[int] = Counter()
    for cookie, packets in (item for stats in found for item in stats.items()):
        counts[cookie & 0xFFFFFFFF] += packets
    return counts


def service_counts(openflow: OpenFlowBackend) -> Mapping[int, int]:
    """Return how many packets were given an endpoint of each port of an exported Service, by the port's ID.

    Those are the first packets of connections, since the port's flows were added: conntrack knows the others.
    """
    found = _read(lambda: openflow.flow_stats(SERVICE_FLOWS)) or {}
    return {cookie & 0xFFFFFFFF: packets for cookie, packets in found.items()}


def handed_packets(openflow: OpenFlowBackend) -> Packets | None:
    """Return how many packets other clusters and Nodes of this one have sent here to be passed on, so far.

    What comes from other gateways of this cluster is not counted: it is for this Node's own Pods.
    """

    def came(origin: int) -> int:
        return sum(openflow.flow_stats(f"table={SOURCE.number},reg0={origin}/0xf").values())

    return _read(lambda: Packets(remote=came(ORIGIN_REMOTE), local=came(ORIGIN_NODE)))


def wireguard_report(wireguard: WireGuardBackend) -> WireGuardReport:
    """Return what the devices say now."""

    def said() -> WireGuardReport:
        peers = wireguard.statuses()
        created = wireguard.keys().current.created if peers else 0.0
        return WireGuardReport(peers=peers, key_created=created, restarts=wireguard.restarts, now=time.time())

    return _read(said) or WireGuardReport(now=time.time())


def _read(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except BackendError as error:
        log.debug("%s", error)
        return None
