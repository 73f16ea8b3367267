"""Which CNI profiles of the lab tests run with, and what a profile cannot do.

Tests of every profile take `WITH_OUR_AGENTS`, so a new profile takes part. Tests that only differ in how packets
of Pods are forwarded take `FORWARDING`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import WITH_OUR_AGENTS, Cni, Topology

__all__ = ["FORWARDING", "WITH_OUR_AGENTS", "Ability", "require", "translated"]

FORWARDING = (Cni.FLANNEL, Cni.CALICO, Cni.EBPF)
"""A profile for each way of forwarding: netfilter, felix's rules with addresses of its own IPAM, and eBPF."""


class Ability(StrEnum):
    """What a profile may lack."""

    FRAGMENTS = "datagrams that Pods send in fragments arrive"
    TRANSLATED_ERRORS = "ICMP errors of Pods about connections with a translated source arrive"


_LIMITS: Mapping[tuple[Cni, Ability], str] = {
    (Cni.EBPF, Ability.FRAGMENTS): (
        "the kernel cuts fragments that it did not make; the userspace datapath takes none below 1200 bytes"
    ),
    (Cni.OVERLAP, Ability.TRANSLATED_ERRORS): "only Pods send such errors, and none is reached",
}
_USERSPACE = frozenset({Ability.FRAGMENTS})  # limits on the userspace datapath only


def require(lab: Lab, ability: Ability) -> None:
    """Skip the calling test if the profile of a lab lacks an ability."""
    cni = lab.topology.clusters[0].cni
    reason = _LIMITS.get((cni, ability))
    if reason is not None and (lab.userspace or ability not in _USERSPACE):
        pytest.skip(f"{cni}: {reason}")


def translated(topology: Topology) -> Topology:
    """Return clusters that publish no Pods: gateways translate every source, as with the default configuration."""
    clusters = tuple(replace(cluster, publish_pods=False) for cluster in topology.clusters)
    return replace(topology, clusters=clusters)
