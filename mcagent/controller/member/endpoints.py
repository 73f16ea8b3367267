"""Which endpoints of an import are taken over, by `networks` and what this cluster itself exports. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.controller import names
from mcagent.controller.member.exports import ENDPOINTS, export_ref
from mcagent.controller.member.import_content import CLUSTER_INFO, Ports, Subsets
from mcagent.controller.member.indexes import CLUSTER_INFOS, NODES_BY_ADDRESS
from mcagent.controller.member.networks import address_of, cidrs_of, cluster_of, networks
from mcagent.controller.raw import items_at, text_at, texts_at
from mcagent.controller.reconciler import Leader, Ref, Side, View
from mcagent.controller.settings import MemberSettings
from mcagent.model.field import printable
from mcagent.model.objects import Kind

_SHOWN = 3  # addresses of a refusal that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The endpoints that are used, whose they are by their addresses, and what is refused, in words."""

    subsets: Mapping[Ports, tuple[str, ...]]
    clusters: tuple[str, ...]
    refused: tuple[str, ...]


def own_addresses(view: View, leader: Leader, namespace: str, name: str) -> frozenset[str] | None:
    """Return the addresses that this cluster exports for a Service; None when it does not export it."""
    raw = view.get(export_ref(leader, names.endpoints_export(leader.cluster_id, namespace, name)))
    spec = {"clusterID": leader.cluster_id, "namespace": namespace, "name": name, "kind": ENDPOINTS}
    if raw is None or any(text_at(raw, "spec", field) != text for field, text in spec.items()):
        return None
    return frozenset(
        text_at(item, "ip")
        for subset in items_at(raw, "spec", "endpoints", "subsets")
        for item in items_at(subset, "addresses")
    )


def accept(
    given: Subsets, own: frozenset[str] | None, view: View, leader: Leader, settings: MemberSettings
) -> Accepted:
    """Return the endpoints that are used.

    What this cluster exports itself is. Else an address of this cluster (of its CIDRs, Nodes, API servers) is not,
    and any other only if it lies in what another cluster announces, or in what the settings allow.
    """
    infos = view.indexed(CLUSTER_INFOS.name, CLUSTER_INFO, Side.LEADER)
    announced = tuple((cluster_of(raw), cidrs_of(raw)) for raw in infos if cluster_of(raw) != leader.cluster_id)
    here = [text for raw in infos if cluster_of(raw) == leader.cluster_id for text in cidrs_of(raw)]
    if settings.service_cidr is not None:
        here.append(settings.service_cidr)
    mine, others = networks(announced, (*here, *settings.pod_cidrs), settings.allowed_endpoint_cidrs)
    servers = _api_servers(view) if given else frozenset()
    kept: dict[Ports, list[str]] = {}
    clusters: dict[str, None] = {}
    ours: list[str] = []
    unknown: list[str] = []
    for ports, addresses in given.items():
        for text in addresses:
            number = address_of(text)
            if own is not None and text in own and number is not None:
                clusters[leader.cluster_id] = None
            elif number is None:
                unknown.append(text)
                continue
            elif mine.owners(number) or text in servers or view.indexed(NODES_BY_ADDRESS.name, text):
                ours.append(text)
                continue
            elif owners := others.owners(number):
                clusters |= dict.fromkeys(filter(None, owners))
            else:
                unknown.append(text)
                continue
            kept.setdefault(ports, []).append(text)
    refused = []
    if ours and own is None:  # else they are what this cluster exported a moment ago
        refused.append(f"{_named(ours)}: of this cluster, which does not export the Service")
    if unknown:
        refused.append(f"{_named(unknown)}: in no CIDR that another cluster announces")
    return Accepted(
        subsets={ports: tuple(addresses) for ports, addresses in kept.items()},
        clusters=tuple(sorted(clusters)),
        refused=tuple(refused),
    )


def _api_servers(view: View) -> frozenset[str]:
    raw = view.get(Ref(kind=Kind.ENDPOINT_SLICE, namespace="default", name="kubernetes"))
    return frozenset(text for endpoint in items_at(raw, "endpoints") for text in texts_at(endpoint, "addresses"))


def _named(addresses: list[str]) -> str:
    shown = ", ".join(printable(text) for text in sorted(set(addresses))[:_SHOWN])
    more = len(set(addresses)) - _SHOWN
    return f"endpoints {shown}" + (f" and {more} more" if more > 0 else "")
