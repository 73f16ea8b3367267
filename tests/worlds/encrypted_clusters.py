"""Clusters whose gateways have WireGuard keys, and what an agent that encrypts compiles of them."""

from __future__ import annotations

import base64
from dataclasses import replace

from mcagent.core.compile import Compiled, compile_desired
from mcagent.model.config import Config, TrafficEncryption
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.objects import ApiObject, ClusterInfoImport, WireGuardInfo
from tests.worlds.core_inputs import HOME, cluster, config, snapshot


def key(number: int) -> str:
    """Return the n-th public key."""
    return base64.b64encode(number.to_bytes(32, "big")).decode()


OWN = key(1)
FACTS = Facts(wireguard=WireGuardImplementation.KERNEL, wireguard_public_key=OWN)
EAST_GATEWAYS = ("203.0.113.1", "203.0.113.2")


def encrypting(**values: object) -> Config:
    """Return the configuration of gateway g1 with encryption."""
    return config("g1", encryption=TrafficEncryption.WIREGUARD, **values)


def keyed(info: ClusterInfoImport, *keys: str | WireGuardInfo) -> ClusterInfoImport:
    """Return the object with a key of its own for each gateway, and the first for old readers."""
    infos = [k if isinstance(k, WireGuardInfo) else WireGuardInfo(public_key=k) for k in keys]
    pairs = tuple(zip(info.gateway_ips, infos, strict=False))
    return replace(info, wireguard=infos[0], gateway_wireguard=pairs)


EAST = keyed(cluster("east", "10.97.0.0/16", gateways=EAST_GATEWAYS, created="2026-01-01"), key(11), key(12))


def compiled(*infos: ClusterInfoImport, facts: Facts = FACTS, settings: Config | None = None) -> Compiled:
    """Compile gateway g1 with these clusters."""
    objects: tuple[ApiObject, ...] = (*HOME, *infos)
    return compile_desired(snapshot(*objects), facts, settings or encrypting())
