"""Manifests of policies as an agent reads them."""

from __future__ import annotations

from flows.pipeline import Env
from mcagent.core.snapshot import ATTRIBUTE, Relist, apply_changes
from mcagent.model.config import Config, PolicyFailureMode
from mcagent.model.kinds import kind_of
from mcagent.model.objects import Snapshot
from tests.worlds.policy_manifests import NODE, Manifest

CLUSTER_IDS = {"east": 1, "west": 2}
ENV = Env(gateway=True, ct_zone_base=28003, local_gateways=(), identities=True)


def read(objects: list[Manifest]) -> Snapshot:
    """Return a cluster of these manifests."""
    kinds = {kind: [obj for obj in objects if kind_of(obj) is kind] for kind in ATTRIBUTE}
    return apply_changes(Snapshot(), [Relist(kind=kind, items=items) for kind, items in kinds.items()])


def config(mode: PolicyFailureMode) -> Config:
    """Return the configuration of an agent that enforces policies."""
    return Config(node_name=NODE, policy_failure_mode=mode)
