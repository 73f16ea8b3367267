"""What the Nodes of a cluster with several gateways compile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mcagent.core.compile import Compiled, compile_desired
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import TunnelPort
from mcagent.model.objects import ApiObject, Node, Snapshot
from tests.worlds.core_inputs import HOME, cluster, config, gateway, node, resources, snapshot

EAST = cluster("east", "10.97.0.0/16", gateways=("203.0.113.1", "203.0.113.2", "203.0.113.3"))
WEST = cluster("west", "10.98.0.0/16", gateways=("203.0.113.8", "203.0.113.9"))
THIRD: tuple[ApiObject, ...] = (node("g3", "192.0.2.4", "10.10.4.0/24"), gateway("g3", "192.0.2.4"))


def home(*objects: ApiObject, **nodes: dict[str, Any]) -> Snapshot:
    """Return cluster home with three gateways, two remote clusters, and these fields of Nodes changed."""
    all_objects = [*HOME, *THIRD, EAST, WEST, *objects]
    return snapshot(
        *(replace(obj, **nodes.get(obj.meta.name, {})) if isinstance(obj, Node) else obj for obj in all_objects)
    )


def compiled(source: Snapshot, on: str, facts: Facts | None = None, **values: Any) -> Compiled:
    """Return what Node `on` should have; by default every peer has answered BFD."""
    settings_ = config(on, **values)
    return compile_desired(source, facts or seen_by(source, settings_), settings_)


def seen_by(source: Snapshot, settings_: Config, **facts: Any) -> Facts:
    """Return facts in which every peer of this Node has answered BFD once."""
    names = tunnels(compile_desired(source, Facts(), settings_)).values()
    return Facts(bfd_seen=frozenset(port.name for port in names), **facts)


def tunnels(compiled: Compiled) -> dict[str, TunnelPort]:
    """Return the tunnels by the address of their other end."""
    return {str(r.remote_ip): r for r in resources(compiled) if isinstance(r, TunnelPort)}
