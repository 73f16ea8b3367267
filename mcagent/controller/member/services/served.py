"""Which endpoints behind an exported ClusterIP the gateways of this cluster serve, as far as the API shows. Pure.

The gateways' own rules are in `mcagent.core.local_cluster.services`. An endpoint that they refuse must not count
as ready, because other clusters would send connections to it. Knows nothing of objects on the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from ipaddress import IPv4Address, IPv4Network

from mcagent.controller.machinery.reconciler import View
from mcagent.controller.member.indexes import NODES_BY_ADDRESS
from mcagent.controller.settings import MemberSettings
from mcagent.core.local_cluster.services import KUBERNETES_PORTS, users_may_write_slices
from mcagent.model.api.kubernetes import ApiEndpoint, ApiEndpointSlice, ApiNode
from mcagent.model.net import network_or_none

Served = Callable[[ApiEndpointSlice, ApiEndpoint], bool]


def served_endpoints(view: View, settings: MemberSettings, namespace: str, service: str) -> Served:
    """Return a function that tells whether gateways serve an endpoint of the Service.

    Gateways serve IPv4 addresses of this cluster's Pods and Nodes. An endpoint that refers to a Pod of the
    namespace, or to a Node, is taken to be there. Another one has to lie in a Pod CIDR, of the settings or of a
    Node; where this cluster has neither, Pods may have any address.
    """
    restricted = users_may_write_slices(namespace, service)

    @cache
    def pod_networks() -> list[IPv4Network]:
        return list(_pod_networks(view, settings))

    def is_served(endpoint_slice: ApiEndpointSlice, endpoint: ApiEndpoint) -> bool:
        text, pod = next(iter(endpoint.addresses), ""), endpoint.target_ref
        try:
            address = IPv4Address(text)
        except ValueError:
            return False
        has_pod = pod.kind == "Pod" and pod.namespace in ("", namespace)
        if any(True for _ in view.indexed(NODES_BY_ADDRESS, text)):
            ports = {port.port for port in endpoint_slice.ports}
            return not restricted or (has_pod and not ports <= KUBERNETES_PORTS)
        if has_pod or endpoint.node_name or not pod_networks():
            return True
        return any(address in network for network in pod_networks())

    return is_served


def network_changed(old: ApiNode | None, new: ApiNode | None) -> bool:
    """Tell whether the addresses or Pod CIDRs of a Node changed."""
    return _networks_and_addresses(old) != _networks_and_addresses(new)


def _networks_and_addresses(node: ApiNode | None) -> object:
    return None if node is None else (node.spec.pod_cidrs, node.spec.pod_cidr, node.status.addresses)


def _pod_networks(view: View, settings: MemberSettings) -> Iterable[IPv4Network]:
    texts = [*settings.pod_cidrs, *(text for node in view.list(ApiNode) for text in node.spec.pod_cidrs)]
    for text in texts:
        if isinstance(network := network_or_none(text), IPv4Network):
            yield network
