"""Clusters with one Service CIDR, and the leader that assigns them export ranges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mcagent.controller.contract.export_ranges import ADDRESS_ANNOTATION
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.model.objects import Kind
from mcagent.model.parsing.clusters import ADDRESS_CONDITION
from tests.worlds.control_clusters import Clusters, Member
from tests.worlds.member_world import AREA, HOME

KUBEADM = "10.96.0.0/12"


def world(members: tuple[str, ...] = ("east", "west"), **limits: Any) -> Clusters:
    """Return clusters with the Service CIDR of kubeadm, joined, whose agents serve export addresses."""
    clusters = Clusters(members, service_cidr=KUBEADM)
    clusters.leader_settings = LeaderSettings(namespace=AREA, limits=MemberLimits(**limits))
    clusters.restart_leader()
    for member in clusters.members.values():
        member.settings = replace(member.settings, export_cidr="auto")
        join(clusters, member)
    return clusters


def join(clusters: Clusters, member: Member) -> None:
    """Let a member join with one gateway and one exported Service."""
    member.node("gw", 1)
    member.serve(f"web-{member.cluster_id}", 5)
    member.export(f"web-{member.cluster_id}")
    member.join()
    clusters.run()
    agents_serve(clusters, member)


def agents_serve(clusters: Clusters, member: Member) -> None:
    """Let the agents of gateways report that they serve export addresses."""
    for raw in member.api.list(Kind.GATEWAY, HOME):
        member.api.change(Kind.GATEWAY, HOME, raw["metadata"]["name"], {"status": {"exportAddresses": True}})
    clusters.run()


def exported(clusters: Clusters, member: Member, name: str = "") -> tuple[str, list[str]]:
    """Return the export address in a member's Service export, and the addresses in its Endpoints export."""
    service = name or f"web-{member.cluster_id}"
    exports = clusters.exports()
    notes = exports[f"{member.cluster_id}-shop-{service}-service"]["metadata"].get("annotations", {})
    subsets = exports[f"{member.cluster_id}-shop-{service}-endpoints"]["spec"]["endpoints"]["subsets"]
    return notes.get(ADDRESS_ANNOTATION, ""), [a["ip"] for subset in subsets for a in subset["addresses"]]


def condition_text(member: Member, name: str, kind: str = ADDRESS_CONDITION) -> str:
    """Return the message of a condition of a ServiceExport; "" if it has none."""
    raw = member.api.get(Kind.SERVICE_EXPORT, "shop", name) or {}
    conditions = raw.get("status", {}).get("conditions", [])
    return next((c["message"] for c in conditions if c["type"] == kind), "")
