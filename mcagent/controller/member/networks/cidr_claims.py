"""The times of other clusters' claims, and the claims that this cluster refuses. Pure.

mcagent's leader writes the times to an annotation of the ResourceImport. With Antrea's leader, this cluster
keeps them on its ClusterInfoImports: a new claim gets the current time, others keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial

from mcagent.controller.contract.cidr_claims import (
    MOST_CIDRS,
    CidrClaim,
    cidr_claim,
    claims_of,
    collide,
    gateway_claim,
)
from mcagent.controller.machinery.reconciler import Index, Leader, Side, View
from mcagent.controller.member.indexes import API_SERVER, SLICES_BY_SERVICE, addresses_of
from mcagent.core.addresses.rules import parts_outside
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.api.multicluster import ApiClusterInfoImport, ClusterInfo, ResourceImport
from mcagent.model.net import host_network, parse_address, parse_network
from mcagent.model.parsing.granted import (
    CLAIMS_ANNOTATION,
    REFUSED,
    REFUSED_ANNOTATION,
    at,
    read_granted,
    read_refused,
    to_microseconds,
)

MAX_PARTS = 64  # of a Pod CIDR around API servers and Nodes


def granted_times(
    resource_import: ResourceImport,
    present: ApiClusterInfoImport | None,
    imported: Iterable[CidrClaim],
    left_out: Iterable[str],
    now: float,
    *,
    parts: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, str]:
    """Return the claims of a ClusterInfoImport by their text, each with its time, or REFUSED.

    `present`: the ClusterInfoImport as it is. `left_out`: the texts of claims that this cluster refuses
    (`protected`). `parts`: the parts that are imported of a Pod CIDR (`divided`); they have its time. A Pod CIDR
    whose parts are all imported has its time, too.
    """
    whole_by_part = {part: whole for whole, texts in (parts or {}).items() for part in texts}
    reported, own_times = _read(resource_import), _read(present)
    if present is not None and present.annotation(CLAIMS_ANNOTATION) is None:  # made by an early version
        created = to_microseconds(present.metadata.creation_timestamp)
        own_times = {claim.text: created for claim in claims_of(present.spec)}
    fresh = to_microseconds(at(datetime.fromtimestamp(now, UTC)))
    times = {
        claim.text: reported.get(whole := whole_by_part.get(claim.text, claim.text))
        or own_times.get(whole)
        or own_times.get(claim.text)
        or fresh
        for claim in imported
    }
    times |= {whole: times[texts[0]] for whole, texts in (parts or {}).items() if times.keys() >= {*texts}}
    refused = {text for text, time in reported.items() if time == REFUSED and _is_claim(text)} | set(left_out)
    return dict.fromkeys(refused - times.keys(), REFUSED) | times


def divided(
    view: View,
    leader: Leader,
    info: ClusterInfo,
    resource_import: ResourceImport,
    present: ApiClusterInfoImport | None,
) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """Return, for each Pod CIDR that is imported in parts, the parts and the addresses that are left out.

    These are the API servers of the leader and of this cluster, since with the CNIs of clouds Pods have addresses
    of the Nodes' networks; and addresses of Nodes that appeared while the CIDR was in use: `present` has it, with
    a time that is not before the leader's, so it was not claimed anew. A CIDR that would need more than MAX_PARTS
    parts is not in the result, nor one whose parts would be too many CIDRs of a cluster (`claims_of`).
    """
    reported, own_times = _read(resource_import), _read(present)
    servers = [(c, "an API server") for text in leader.addresses if (c := gateway_claim(text))]
    servers += [(c, "an API server") for c in _api_servers(view)]
    divisions: dict[str, tuple[Sequence[str], Sequence[str]]] = {}
    places = MOST_CIDRS - len(info.pod_cidrs)
    nodes_of = cache(partial(_nodes_of_prefix, view))
    for text in info.pod_cidrs:
        claim, first = cidr_claim(text, "Pod CIDR"), own_times.get(text)
        if claim is None:
            continue
        nodes = nodes_of(_prefix_of(claim)) if first and reported.get(text, first) <= first else ()
        inside = {a.text: f"{a.text} ({owner})" for a, owner in (*servers, *nodes) if collide(claim, a)}
        if 0 < len(inside) <= MAX_PARTS:
            excluded = [host_network(parse_address(address)) for address in inside]
            parts = parts_outside(parse_network(text)[0], excluded)
            if 0 < len(parts) <= min(MAX_PARTS, places):
                places -= len(parts)
                divisions[text] = (tuple(map(str, parts)), tuple(inside.values()))
    return divisions


def refused_pod_cidrs(
    own_import: ResourceImport | None, remote_import: ResourceImport, own_id: str, pod_cidrs: Iterable[str]
) -> list[str]:
    """Return the Pod CIDRs of this cluster that the leader, or the cluster of `remote_import`, does not use."""
    refused = set(refused_by_leader(own_import)) if own_import is not None else set()
    refused |= {*read_refused(remote_import.annotation(REFUSED_ANNOTATION) or "").get(own_id, ())}
    claims = filter(None, (cidr_claim(text, "Pod CIDR") for text in pod_cidrs))
    return [claim.text for claim in claims if claim.text in refused]


def refused_by_leader(resource_import: ResourceImport) -> list[str]:
    """Return the texts of the claims in a ResourceImport that the leader refuses, sorted."""
    return sorted(text for text, time in _read(resource_import).items() if time == REFUSED and _is_claim(text))


def since(cluster_info_import: ApiClusterInfoImport | None, claim: CidrClaim) -> str:
    """Return the time of a claim of a ClusterInfoImport; "" if it has no such claim."""
    return _read(cluster_info_import).get(claim.text, "")


def protected(view: View, leader: Leader, cluster_id: str, claims: Sequence[CidrClaim]) -> dict[str, str]:
    """Return a message for each claim with an address that other clusters must not have, by the claim's text.

    These are the addresses of the leader's API server, this cluster's API servers and its Nodes. Only the
    leader's own cluster may have the leader's address as a gateway, because one machine can be both.
    """
    messages: dict[str, str] = {}
    server = f"the leader's API server, which only cluster {leader.leader_cluster_id} may have as a gateway"
    servers = [(c, server) for text in leader.addresses if (c := gateway_claim(text))]
    own = [(c, "an API server of this cluster") for c in _api_servers(view)]
    nodes_of = cache(partial(_nodes_of_prefix, view))
    for claim in claims:
        if claim.range is None:
            continue
        leader_servers = [] if claim.gateway and cluster_id == leader.leader_cluster_id else servers
        for address, owner in (*leader_servers, *own, *nodes_of(_prefix_of(claim))):
            if collide(claim, address):
                messages[claim.text] = f"{claim} of cluster {cluster_id} is ignored: {address.text} is {owner}"
                break
    return messages


def _api_servers(view: View) -> Iterable[CidrClaim]:
    for endpoint_slice in view.indexed(SLICES_BY_SERVICE, API_SERVER):
        yield from filter(None, map(gateway_claim, sorted(addresses_of(endpoint_slice))))


def _prefix_of(claim: CidrClaim) -> str:
    """Return the value of NODES_BY_PREFIX under which the Nodes are that may have an address in a claim."""
    assert claim.range is not None
    version, first, last = claim.range
    short = last - first > 0xFFFF
    return f"{first:x}" if version == 6 else f"{first >> 24}/8" if short else f"{first >> 16}/16"


def _nodes_of_prefix(view: View, prefix: str) -> Sequence[tuple[CidrClaim, str]]:
    """Return the addresses of Nodes under a value of NODES_BY_PREFIX, each with its description."""
    return [
        (address, f"an address of Node {node.name} of this cluster")
        for node in view.indexed(NODES_BY_PREFIX, prefix)
        for address in filter(None, map(gateway_claim, sorted(addresses_of(node))))
    ]


def _by_prefix(obj: ApiNode) -> Iterable[str]:
    prefixes: set[str] = set()
    for address in filter(None, map(gateway_claim, addresses_of(obj))):
        assert address.range is not None
        version, number, _ = address.range
        prefixes |= {f"{number:x}"} if version == 6 else {f"{number >> 24}/8", f"{number >> 16}/16"}
    return prefixes


# Under the first 8 and the first 16 bits of each IPv4 address, "10/8" and "2560/16"; IPv6: the address.
NODES_BY_PREFIX = Index("nodes-by-prefix", ApiNode, Side.LOCAL, _by_prefix)


def _read(obj: ApiObject | None) -> Mapping[str, str]:
    try:
        return read_granted((obj.annotation(CLAIMS_ANNOTATION) if obj is not None else None) or "{}")
    except ValueError:
        return {}


def _is_claim(text: str) -> bool:
    """Tell whether a leader's text can be a claim: it is copied to ClusterInfoImports and shown."""
    return len(text) <= 64 and text.isascii() and text.isprintable()
