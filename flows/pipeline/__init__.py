"""The pipeline of mcagent's bridge: its declaration, the topology it is built from, and the builders."""

from flows.pipeline.declaration import PIPELINE
from flows.pipeline.owners import base, claimed_identities, cluster, endpoints, node, pod_identity, service
from flows.pipeline.values import (
    Endpoint,
    Entries,
    Env,
    LocalNode,
    LocalService,
    NextHop,
    NextHopGroup,
    RemoteCluster,
    RemoteGateway,
)

__all__ = [
    "PIPELINE",
    "Endpoint",
    "Entries",
    "Env",
    "LocalNode",
    "LocalService",
    "NextHop",
    "NextHopGroup",
    "RemoteCluster",
    "RemoteGateway",
    "base",
    "claimed_identities",
    "cluster",
    "endpoints",
    "node",
    "pod_identity",
    "service",
]
