"""What commands say of clusters whose gateways run Antrea, by an agent's /status."""

from __future__ import annotations

from mcagent.api.status import Summary


def antrea_lines(summary: Summary) -> list[str]:
    """Return a line for each of these clusters."""
    effect = "connections to it leave by this cluster's first gateway, with its address"
    return [f"{name}'s gateways run Antrea: {effect}" for name in summary.antrea_clusters]
