"""The pipeline of mcagent's bridge: its declaration, the topology it is built from, and the builders."""

from flows.mc.topology import (
    Endpoint,
    Env,
    LocalNode,
    LocalService,
    Part,
    RemoteCluster,
    RemoteGateway,
    Zones,
)

__all__ = [
    "Endpoint",
    "Env",
    "LocalNode",
    "LocalService",
    "Part",
    "RemoteCluster",
    "RemoteGateway",
    "Zones",
]
