"""Check `dns`: CoreDNS still answers the names of the ClusterSet that `mcagent dns apply` has configured."""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.api.doctor import CheckFinding
from mcagent.controller.admin import dns
from mcagent.controller.admin.fields import name_of, namespace_of
from mcagent.doctor.check import DoctorCheck, failed
from mcagent.doctor.examined import ExaminedCluster
from mcagent.kube.source import RawObject

CHECK = DoctorCheck(
    name="dns",
    order=252,
    summary="CoreDNS answers the names of the ClusterSet, where `mcagent dns apply` has configured that",
    causes={
        "ZoneLost": failed(
            "names under clusterset.local are not answered: the owner of the ConfigMap ({owner}) has probably "
            "written its own Corefile back",
            "mcagent dns show; mcagent dns apply --coredns-namespace {namespace} --configmap {name}; where the "
            "owner writes it back again: docs/multicluster.md",
        ),
    },
)


def config_maps(cluster: ExaminedCluster) -> list[RawObject]:
    """Return the ConfigMaps that `mcagent dns apply` has changed. Raises SourceError."""
    return cluster.items("/api/v1/configmaps", {"labelSelector": dns.LABEL})


def examine(cluster: ExaminedCluster) -> Iterator[CheckFinding]:
    """Report the Corefiles that lack the zone."""
    applied = cluster.read(config_maps)
    complete = True
    for config_map in applied:
        namespace, name = namespace_of(config_map), name_of(config_map)
        reason = dns.lost(config_map, f"ConfigMap {namespace}/{name}")
        if reason:
            complete = False
            owner = " and ".join(dns.owners(config_map)) or "unknown"
            subject = f"{namespace}/{name}"
            yield CHECK.finding("ZoneLost", reason, subject=subject, owner=owner, namespace=namespace, name=name)
    if complete:
        yield CHECK.passed("names are answered" if applied else "mcagent dns apply has configured nothing")
