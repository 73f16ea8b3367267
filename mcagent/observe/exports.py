"""Counts and hashes of exported Services' endpoints, for comparison between gateways.

All gateways of a cluster choose endpoints from the same objects; one without the API server chooses from older
ones. The hash of a Service is equal on gateways with the same endpoints, independent of Nodes.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import Metric

from mcagent.model.node_state import ExportedPort, NodeRole, NodeState
from mcagent.observe.metric_families import counter, gauge

MOST_COUNTED = 1000  # Services, in order of names, with a time series of their own; further ones share one


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedEndpoints:
    """The number of endpoints of all ports of a Service, and their hash."""

    endpoints: int
    hash: int  # CRC-32


def exports_of(state: NodeState | None) -> dict[str, ExportedEndpoints]:
    """Return the exported Services of a gateway by "namespace/name"; empty on other Nodes."""
    exports: dict[str, ExportedEndpoints] = {}
    ports: Mapping[str, ExportedPort] = state.services if state and state.role is NodeRole.GATEWAY else {}
    for name, port in sorted(ports.items()):
        before = exports.get(service := name.rpartition(":")[0], ExportedEndpoints(endpoints=0, hash=0))
        places = b"".join(address.packed + number.to_bytes(2) for address, number in sorted(port.endpoints))
        exports[service] = ExportedEndpoints(
            endpoints=before.endpoints + len(port.endpoints),
            hash=zlib.crc32(f"{name} {port.address} {len(places)} ".encode() + places, before.hash),
        )
    return exports


def connections_of(state: NodeState | None, opened: Mapping[int, int]) -> Counter[str]:
    """Return the connections opened to each exported Service by "namespace/name"; `opened`: by a port's ID."""
    counts: Counter[str] = Counter()
    for name, number in state.service_ids.items() if state is not None else ():
        counts[name.rpartition(":")[0]] += opened.get(number, 0)
    return counts


def export_metrics(state: NodeState, opened: Mapping[int, int] | None) -> Iterator[Metric]:
    """Yield the metrics of exported Services.

    `opened`: connections by the ID of a Service's port; None: unknown.
    """
    exports, label = exports_of(state), ["export"]  # a target's own label is often "service"
    text = "Endpoints of an exported Service that this gateway chooses from."
    yield gauge(
        "mcagent_exported_endpoints", text, label, [([key], export.endpoints) for key, export in exports.items()]
    )
    text = "Hash of these endpoints: equal on gateways of a cluster that know the same endpoints."
    yield gauge(
        "mcagent_exported_endpoints_hash", text, label, [([key], export.hash) for key, export in exports.items()]
    )
    if opened is None:
        return  # a 0 would be a reset of the counter
    counts: Counter[str] = Counter()
    places = {service: place for place, service in enumerate(exports)}
    for service, number in connections_of(state, opened).items():
        if (place := places.get(service)) is not None:
            counts[service if place < MOST_COUNTED else ""] += number
    text = (
        "Connections to an exported Service for which this gateway chose an endpoint; a retransmitted first "
        f"packet counts again. Services beyond the first {MOST_COUNTED} share a series without a name."
    )
    yield counter("mcagent_exported_connections", text, label, [([key], n) for key, n in sorted(counts.items())])
