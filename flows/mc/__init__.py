"""The pipeline of mcagent's bridge: its declaration, the topology it is built from, and the builders."""

from flows.mc.base import base
from flows.mc.declaration import PIPELINE
from flows.mc.parts import cluster, endpoints, node
from flows.mc.service import service
from flows.mc.topology import (
    Choice,
    Endpoint,
    Env,
    LocalNode,
    LocalService,
    Part,
    RemoteCluster,
    RemoteGateway,
    Way,
    Zones,
)

__all__ = [
    "PIPELINE",
    "Choice",
    "Endpoint",
    "Env",
    "LocalNode",
    "LocalService",
    "Part",
    "RemoteCluster",
    "RemoteGateway",
    "Way",
    "Zones",
    "base",
    "cluster",
    "endpoints",
    "node",
    "service",
]
