"""What this gateway knows of the endpoints of exported Services, as numbers to be compared with other gateways'.

All gateways of a cluster choose endpoints from the same objects; one that lost the API server chooses from older
ones. The hash of a Service is the same on gateways that know the same endpoints, whatever they say of Nodes.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import Metric

from mcagent.model.node_state import ExportedPort, NodeState, Role
from mcagent.observe.families import counter, gauge

MOST_COUNTED = 1000  # Services that have a time series of their own; those beyond, by name, are counted together


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedEndpoints:
    """A Service's endpoints, each port's counted."""

    endpoints: int
    hash: int  # CRC-32


def exports_of(state: NodeState | None) -> dict[str, ExportedEndpoints]:
    """Return what a gateway exports, by "namespace/name"; of another Node nothing."""
    found: dict[str, ExportedEndpoints] = {}
    ports: Mapping[str, ExportedPort] = state.services if state and state.role is Role.GATEWAY else {}
    for name, port in sorted(ports.items()):
        before = found.get(service := name.rpartition(":")[0], ExportedEndpoints(endpoints=0, hash=0))
        places = b"".join(address.packed + number.to_bytes(2) for address, number in sorted(port.endpoints))
        found[service] = ExportedEndpoints(
            endpoints=before.endpoints + len(port.endpoints),
            hash=zlib.crc32(f"{name} {port.address} {len(places)} ".encode() + places, before.hash),
        )
    return found


def connections_of(state: NodeState | None, opened: Mapping[int, int]) -> Counter[str]:
    """Return the connections begun to each exported Service, by "namespace/name"; `opened`: by a port's ID."""
    counts: Counter[str] = Counter()
    for name, number in state.service_ids.items() if state is not None else ():
        counts[name.rpartition(":")[0]] += opened.get(number, 0)
    return counts


def export_metrics(state: NodeState, opened: Mapping[int, int]) -> Iterator[Metric]:
    """Yield the metrics of exported Services; `opened`: connections begun, by the ID of a Service's port."""
    found, label = exports_of(state), ["export"]  # a target's own label is often "service"
    text = "Endpoints of an exported Service that this gateway chooses from."
    yield gauge("mcagent_exported_endpoints", text, label, [([key], one.endpoints) for key, one in found.items()])
    text = "Hash of these endpoints: the same on all gateways of a cluster that know the same ones."
    yield gauge("mcagent_exported_endpoints_hash", text, label, [([key], one.hash) for key, one in found.items()])
    counts: Counter[str] = Counter()
    places = {service: place for place, service in enumerate(found)}
    for service, number in connections_of(state, opened).items():
        if (place := places.get(service)) is not None:
            counts[service if place < MOST_COUNTED else ""] += number
    text = (
        "Connections to an exported Service that this gateway gave an endpoint; a first packet sent again counts "
        f"again. Beyond {MOST_COUNTED} Services together, without a name."
    )
    yield counter("mcagent_exported_connections", text, label, [([key], n) for key, n in sorted(counts.items())])
