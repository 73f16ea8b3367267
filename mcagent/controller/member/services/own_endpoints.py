"""The part of an imported Service that this cluster exports itself: its Pods, not its ClusterIP. Pure.

Every exporter's ClusterIP is an endpoint of the imported Service. kube-proxy, in every mode, translates a
connection once: one that chose the ClusterIP of its own cluster would leave with that address as its destination,
and go nowhere. So in the exporting cluster itself the Service's own ready endpoints stand in its place.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcagent.controller.contract.raw import items_at, text_at
from mcagent.controller.contract.services import Ports
from mcagent.controller.machinery.reconciler import Ref, View
from mcagent.controller.member.indexes import SLICES_BY_SERVICE
from mcagent.controller.member.services.backends import cluster_ips, pod_ip_subsets
from mcagent.controller.member.services.import_content import Subsets
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind


def behind_own_address(
    subsets: Subsets, own: frozenset[str] | None, view: View, namespace: str, name: str
) -> Subsets:
    """Return the endpoints with this cluster's ClusterIPs of the Service replaced by what is behind them.

    `own` are the addresses that this cluster exports; None: it exports none.
    """
    service = view.get(Ref(kind=Kind.SERVICE, namespace=namespace, name=name))
    ours = frozenset(cluster_ips(service) if service is not None and own else ()) & (own or frozenset())
    if service is None or not any(ours.intersection(addresses) for addresses in subsets.values()):
        return subsets
    found: dict[Ports, dict[str, None]] = {}
    for ports, addresses in subsets.items():
        if kept := [text for text in addresses if text not in ours]:
            found.setdefault(ports, {}).update(dict.fromkeys(kept))
    slices = view.indexed(SLICES_BY_SERVICE, f"{namespace}/{name}")
    for ports, pods in _behind(pod_ip_subsets(service, slices)):
        found.setdefault(ports, {}).update(dict.fromkeys(pods))
    return {ports: tuple(addresses) for ports, addresses in found.items()}


def _behind(subsets: Iterable[RawObject]) -> Iterable[tuple[Ports, list[str]]]:
    for subset in subsets:
        ports = tuple(
            sorted((text_at(p, "name"), text_at(p, "protocol"), p["port"]) for p in items_at(subset, "ports"))
        )
        yield ports, [text_at(item, "ip") for item in items_at(subset, "addresses")]
