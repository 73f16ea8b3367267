"""Endpoints on Nodes from which no tunnel packet ever came: they get no new connections while others exist.

Such a Node has no agent (yet), or its tunnel is blocked. With nothing else to choose, they are used all the same,
as silent gateways are. Must not know flows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mcagent.core.fragments.path_state import PathState
from mcagent.model.node_state import ExportedPort
from mcagent.model.objects import Kind
from mcagent.model.problem import Problem, Severity


def silent_nodes(paths: Mapping[str, tuple[PathState, ...]], unheard: frozenset[str]) -> frozenset[str]:
    """Return the Nodes of this cluster from which nothing came by any tunnel. `unheard`: names of tunnels."""
    return frozenset(
        node for node, tunnels in paths.items() if tunnels and all(path.tunnel.name in unheard for path in tunnels)
    )


def for_new_connections(port: ExportedPort, silent: frozenset[str]) -> ExportedPort:
    """Return the port with its endpoints on silent Nodes as old ones; unchanged if all are there, or none is."""
    endpoints = tuple(zip(port.endpoints, port.nodes, strict=True))
    chosen = tuple((endpoint, node) for endpoint, node in endpoints if node not in silent)
    if len(chosen) in (0, len(endpoints)):
        return port
    return replace(
        port,
        endpoints=tuple(endpoint for endpoint, _ in chosen),
        nodes=tuple(node for _, node in chosen),
        old_endpoints=(*port.old_endpoints, *(endpoint for endpoint, node in endpoints if node in silent)),
    )


def problems(exports: Mapping[str, ExportedPort], silent: frozenset[str]) -> tuple[Problem, ...]:
    """Report the exported Services with endpoints on silent Nodes."""
    reported = []
    for name, port in exports.items() if silent else ():
        nodes = sorted({node for node in port.nodes if node in silent})
        if nodes:
            service = name.rpartition(":")[0]
            count, left_out = sum(node in silent for node in port.nodes), len(nodes) < len(set(port.nodes))
            message = (
                f"{count} endpoints of port {port.port} are on Nodes from which no packet ever came ({nodes[0]}; "
                f"Nodes: {len(nodes)}): "
                f"{'not used for new connections' if left_out else 'used, as there are no others'}"
            )
            reported.append(
                Problem(f"{Kind.SERVICE_EXPORT} {service}", "", "EndpointsSilent", message, Severity.WARNING)
            )
    return tuple(reported)
