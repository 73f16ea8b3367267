"""Virtual Pod CIDRs: the CIDRs that clusters publish instead of Pod CIDRs that other clusters have, too. Pure.

Owns the annotations, as `export_ranges` does for Services: what a member asks for, what its leader assigns, what
the member uses (docs/notes/export-ranges.md). Values that others wrote are checked; an invalid one is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from mcagent.controller.contract.cidr_claims import CidrClaim, cidr_claim
from mcagent.controller.contract.export_ranges import ALWAYS, AUTO, read_record
from mcagent.controller.contract.ranges import Range, range_of
from mcagent.model.api.base import ApiObject
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.net import PodPrefix, parse_network
from mcagent.model.parsing.prefixes import MAX_PREFIXES, MAX_TEXT, read_prefixes

LARGEST = 9  # the prefix of the largest Pod CIDR that counts, so that no member makes all others move
# Of a member's ClusterInfo ResourceExport: AUTO or ALWAYS, if the leader may assign virtual CIDRs. Of its
# ResourceImport: the leader's answer (AssignedPodCidrs). Of the member's ClusterSet: what it uses (UsedPodCidrs).
POD_RANGE_ANNOTATION = "mcagent.io/pod-export-range"
# Of the leader's ClusterSet: AssignedPodCidrs by cluster ID.
POD_RANGES_ANNOTATION = "mcagent.io/pod-export-ranges"
POD_CIDRS_ANNOTATION = "mcagent.io/pod-cidrs"  # of a member's ClusterInfo ResourceExport: the real ones, by commas


class PodCidrs(msgspec.Struct, frozen=True, kw_only=True):
    """`prefixes`: pairs of a real and a virtual CIDR (`PREFIXES_ANNOTATION`), and `why` the member needs them."""

    prefixes: str = ""
    why: str = ""

    @property
    def pairs(self) -> tuple[PodPrefix, ...]:
        """The prefixes; () if they are invalid."""
        return parse_pairs(self.prefixes)


class AssignedPodCidrs(PodCidrs, frozen=True, kw_only=True):
    """The leader's decision on a member. Without `why` it is reserved for a cluster that left or wants none.

    `missing`: Pod CIDRs for which no virtual one is free.
    """

    pod_cidrs: str = msgspec.field(default="", name="podCIDRs")  # for which it was made
    missing: str = ""


class UsedPodCidrs(PodCidrs, frozen=True, kw_only=True):
    """The virtual CIDRs of a member. Without `prefixes` it publishes its Pod CIDRs; a `reason` then says why."""

    reason: str = ""


@lru_cache(maxsize=4096)
def parse_pairs(text: str) -> tuple[PodPrefix, ...]:
    """Return the prefixes in a text; () if it is invalid."""
    try:
        return read_prefixes(text)
    except ValueError:
        return ()


def pod_cidrs_of(export: ApiObject) -> tuple[CidrClaim, ...]:
    """Return the real Pod CIDRs that a cluster reports, without those that cannot be; () if there are too many."""
    text = export.annotation(POD_CIDRS_ANNOTATION) or ""
    texts = text.split(",") if len(text) <= MAX_TEXT else []
    claims = (cidr_claim(text, "Pod CIDR") for text in texts[:MAX_PREFIXES] if range_of(text) is not None)
    return tuple(
        claim for claim in claims if claim is not None and parse_network(claim.text)[0].prefixlen >= LARGEST
    )


def configured_pod_cidrs(export: ResourceExport) -> dict[str, str]:
    """Return the real Pod CIDRs of a member by the published ones, where they differ; both have the same order."""
    info = export.spec.cluster_info
    published = info.pod_cidrs if info is not None else ()
    reported = [claim.text for claim in pod_cidrs_of(export)]
    if len(published) != len(reported):
        return {}
    return {cidr: real for cidr, real in zip(published, reported, strict=True) if cidr != real}


def pod_mode_of(export: ApiObject) -> str:
    """Return AUTO or ALWAYS if a member lets the leader assign virtual Pod CIDRs; else ""."""
    mode = export.annotation(POD_RANGE_ANNOTATION)
    return mode if mode in (AUTO, ALWAYS) and pod_cidrs_of(export) else ""


def read_assigned_pods(resource_import: ApiObject) -> AssignedPodCidrs | None:
    """Return the leader's answer to a member; None if it has not answered, or assigns no virtual CIDRs."""
    return read_record(resource_import.annotation(POD_RANGE_ANNOTATION), AssignedPodCidrs)


def read_used_pods(cluster_set: ApiObject) -> UsedPodCidrs | None:
    """Return the virtual CIDRs in the annotation of a member's ClusterSet; None before the first decision."""
    return read_record(cluster_set.annotation(POD_RANGE_ANNOTATION), UsedPodCidrs)


@lru_cache(maxsize=8)
def parse_pod_ranges(text: str) -> Mapping[str, AssignedPodCidrs]:
    """Return the virtual CIDRs in the text of the leader's annotation, by cluster ID."""
    return read_record(text, dict[str, AssignedPodCidrs]) or {}


def recorded_pods(ranges: Mapping[str, AssignedPodCidrs]) -> Iterator[Range]:
    """Yield the virtual CIDRs, also those of clusters that left, as ranges; an owner is "cluster ID CIDR"."""
    for cluster, decision in ranges.items():
        for pair in decision.pairs:
            if (bounds := range_of(str(pair.virtual))) is not None:
                yield (*bounds, f"{cluster} {pair.virtual}")


def read_pod_ranges(cluster_set: ApiObject) -> Mapping[str, AssignedPodCidrs]:
    """Return the virtual CIDRs in the annotation of a leader's ClusterSet, by cluster ID."""
    return parse_pod_ranges(cluster_set.annotation(POD_RANGES_ANNOTATION) or "")
