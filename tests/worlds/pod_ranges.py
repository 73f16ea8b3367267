"""Clusters with one Pod CIDR, and the leader that assigns them virtual ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mcagent.controller.contract.cidr_claims import CidrClaim, cidr_claim
from mcagent.controller.contract.export_ranges import AUTO
from mcagent.controller.contract.pod_ranges import read_used_pods
from mcagent.controller.contract.ranges import Networks, range_of
from mcagent.controller.leader.pod_ranges import Occupied, PodMember
from mcagent.controller.settings import EndpointIpType, LeaderSettings, MemberLimits
from mcagent.kube.source import RawObject
from mcagent.model.api.multicluster import ClusterSet
from mcagent.model.objects import Kind
from tests.worlds.control_clusters import Clusters, Member
from tests.worlds.member_world import AREA, HOME, SET
from tests.worlds.memory_objects import typed

KUBEADM = "10.244.0.0/16"


def claim(text: str) -> CidrClaim:
    """Return the claim to a CIDR."""
    value = cidr_claim(text, "Pod CIDR")
    assert value is not None
    return value


def member(cluster: str, *real: str, mode: str = AUTO) -> PodMember:
    """Return a member with these Pod CIDRs."""
    pod_cidrs = tuple(map(claim, real or (KUBEADM,)))
    return PodMember(
        cluster_id=cluster, mode=mode, pod_cidrs=pod_cidrs, reported=",".join(c.text for c in pod_cidrs)
    )


def occupied(members: list[PodMember], *granted: tuple[str, str]) -> Occupied:
    """Return what members have: their real Pod CIDRs, and granted ones by cluster."""

    def networks(pairs: list[tuple[str, str]]) -> Networks:
        return Networks((*bounds, f"{c} {text}") for c, text in pairs if (bounds := range_of(text)) is not None)

    real = [(m.cluster_id, c.text) for m in members for c in m.pod_cidrs]
    return Occupied(
        granted=networks([*granted]), used=networks([*real, *granted]), claimed=networks([*real, *granted])
    )


def world(members: tuple[str, ...] = ("east", "west"), **limits: Any) -> Clusters:
    """Return clusters with the Pod CIDR of kubeadm and Service CIDRs of their own, joined."""
    clusters = Clusters(members)
    clusters.leader_settings = LeaderSettings(namespace=AREA, limits=MemberLimits(**limits))
    clusters.restart_leader()
    for cluster in clusters.members.values():
        cluster.settings = replace(
            cluster.settings, pod_cidrs=(KUBEADM,), pod_export_cidr="auto", endpoint_ip_type=EndpointIpType.POD_IP
        )
        cluster.restart()
        join(clusters, cluster)
    return clusters


def join(clusters: Clusters, cluster: Member) -> None:
    """Let a member join with one gateway and a Service that all export, with one Pod."""
    cluster.node("gw", 1)
    cluster.api.put(_service())
    cluster.api.put(_slice(cluster))
    cluster.export("db")
    cluster.join()
    clusters.run()
    for raw in cluster.api.list(Kind.GATEWAY, HOME):
        cluster.api.change(Kind.GATEWAY, HOME, raw["metadata"]["name"], {"status": {"podPrefixes": True}})
    clusters.run()


def _service() -> RawObject:
    ports = [{"name": "db", "port": 5432, "protocol": "TCP"}]
    return {
        "kind": "Service",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": {"clusterIP": "None", "type": "ClusterIP", "ports": ports},
    }


def _slice(cluster: Member) -> RawObject:
    return {
        "kind": "EndpointSlice",
        "metadata": {"name": "db-x", "namespace": "shop", "labels": {"kubernetes.io/service-name": "db"}},
        "addressType": "IPv4",
        "ports": [{"name": "db", "port": 5432, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": [pod_address(cluster)],
                "hostname": f"db-{cluster.cluster_id}",
                "conditions": {"ready": True},
            }
        ],
    }


def pod_address(cluster: Member) -> str:
    """Return the address of a cluster's Pod."""
    return f"10.244.7.{len(cluster.cluster_id)}"


def own_prefixes(cluster: Member) -> tuple[str, str]:
    """Return the prefixes that a member uses, and the reason."""
    raw = cluster.api.get(Kind.CLUSTER_SET, HOME, SET)
    assert raw is not None
    cluster_set = typed(raw, Kind.CLUSTER_SET)
    assert isinstance(cluster_set, ClusterSet)
    pods = read_used_pods(cluster_set)
    return ("", "undecided") if pods is None else (pods.prefixes, pods.reason)
