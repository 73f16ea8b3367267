"""What commands say of clusters whose gateways run Antrea, by an agent's /status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def antrea_clusters(summary: Mapping[str, Any]) -> list[str]:
    """Return the IDs of the clusters whose gateways run Antrea, sorted. `summary`: of /status."""
    clusters = summary.get("clusters", {})
    return sorted(name for name, found in clusters.items() if found.get("antrea"))


def antrea_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each of these clusters."""
    what = "connections to it leave by this cluster's first gateway, with its address"
    return [f"{name}'s gateways run Antrea: {what}" for name in antrea_clusters(summary)]
