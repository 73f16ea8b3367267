"""How many endpoints behind an exported ClusterIP gateways of this cluster serve, as far as the API shows. Pure.

`mcagent.core.local_cluster.endpoints` decides, as on gateways: other clusters must not send connections to an
endpoint that gateways refuse. The controller reads Nodes, but no Pods: it believes that an endpoint's Pod exists.
Knows nothing of objects on the leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mcagent.controller.contract.services import EndpointPort
from mcagent.controller.machinery.reconciler import View
from mcagent.controller.settings import MemberSettings
from mcagent.core.local_cluster.endpoints import EndpointRules, port_endpoints
from mcagent.core.local_cluster.nodes import CheckedNode, all_addresses, check_node, networks_of_nodes
from mcagent.core.local_cluster.services import addresses_of_nodes
from mcagent.model.api.kubernetes import ApiEndpointSlice, ApiNode, ApiService
from mcagent.model.config import PodRouting
from mcagent.model.errors import InputError
from mcagent.model.net import Address, NetworkSet, network_or_none
from mcagent.model.objects import Endpoint, EndpointSlice, Kind, Meta, Node, ServicePort
from mcagent.model.parsing.parse import parse_object

_SHOWN = 4  # reasons that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPorts:
    """The ports of a Service that have usable endpoints, and what stands against the other endpoints."""

    ports: tuple[EndpointPort, ...]
    ready: int  # the least number of usable endpoints behind one of these ports
    without: tuple[int, ...]  # the numbers of ports without a usable endpoint
    refused: tuple[str, ...]

    @property
    def why_not_ready(self) -> str:
        """Why connections to a port find no endpoint; "" if all ports have one."""
        if not self.without:
            return ""
        text = f"no usable endpoint behind port {', '.join(map(str, self.without[:_SHOWN]))}"
        return f"{text}: {self.why_refused or 'no endpoint is ready'}"

    @property
    def why_refused(self) -> str:
        """Which endpoints are not usable, and why."""
        left_out = len(self.refused) - _SHOWN
        return "; ".join((*self.refused[:_SHOWN], *((f"{left_out} other reasons",) if left_out > 0 else ())))


class ApiRules(EndpointRules):
    """The rules without knowledge of Pods: what may be a Pod by its reference and its place, is one."""

    def __init__(
        self, nodes: Sequence[CheckedNode], per_pod: frozenset[str] | None, settings: MemberSettings
    ) -> None:
        """Take the Nodes. `per_pod`: those with Pods at any address; None: there may be others than these."""
        by_cidr = frozenset(node.meta.name for node in nodes) - (per_pod or frozenset())
        networks = networks_of_nodes(nodes, {}, (), "", [])
        cidrs = tuple(cidr for node in nodes if not node.per_pod for _, cidr in node.pod_cidrs)
        own = all_addresses({node.meta.name: node for node in nodes}, ())
        local = (network for of_node in networks.values() for network in of_node)
        super().__init__(local, (), addresses_of_nodes(own, cidrs), {}, by_cidr)
        self._per_pod = per_pod
        configured = [network for text in settings.pod_cidrs if (network := network_or_none(text)) is not None]
        self._pods_have_cidrs = bool(configured or cidrs)
        self._configured = NetworkSet(configured)

    def is_pod(self, address: Address, endpoint: Endpoint) -> bool:
        """Tell whether a Pod may have an address that is in no network of a Node."""
        nodes = self._per_pod
        if nodes is not None and (not nodes or (endpoint.node_name and endpoint.node_name not in nodes)):
            return False
        if endpoint.pod or endpoint.node_name or not self._pods_have_cidrs:
            return True
        return int(address) in self._configured

    def has_address(self, namespace: str, pod: str, address: Address) -> bool:  # noqa: ARG002
        """Tell whether an endpoint at a Node's address refers to a Pod."""
        return bool(pod)


class ServedEndpoints:
    """Counts the endpoints of Services. Keeps what follows from Nodes until a Node changes. For many threads."""

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        # One value: a thread that saw new Nodes with the rules of earlier ones would count by these.
        self._last: tuple[Sequence[ApiNode], EndpointRules] = ((), ApiRules((), None, settings))

    def ports(self, view: View, service: ApiService, slices: Iterable[ApiEndpointSlice]) -> ServedPorts:
        """Return the ports of an exported Service that have usable endpoints."""
        rules, refused = self._rules_of(view.list(ApiNode)), dict[str, None]()
        read = tuple(_read_slices(slices, refused))
        meta = Meta(kind=Kind.SERVICE_EXPORT, name=service.name, namespace=service.namespace)
        ports: list[EndpointPort] = []
        numbers: list[int] = []
        without: list[int] = []
        for item in service.spec.ports:
            port = ServicePort(name=item.name, port=item.port, protocol=item.protocol)
            endpoints = port_endpoints(meta, port, read, rules)
            refused |= dict.fromkeys(problem.message for problem in endpoints.problems)
            if endpoints.usable:
                ports.append((item.name, item.protocol, item.port))
                numbers.append(len(endpoints.usable))
            else:
                without.append(item.port)
        return ServedPorts(
            ports=tuple(ports), ready=min(numbers, default=0), without=tuple(without), refused=tuple(refused)
        )

    def _rules_of(self, nodes: Sequence[ApiNode]) -> EndpointRules:
        last_nodes, rules = self._last
        if nodes == last_nodes:  # a comparison of identities, as long as no Node changes
            return rules
        if list(map(_networks_and_addresses, nodes)) != list(map(_networks_and_addresses, last_nodes)):
            routing = self._settings.pod_routing
            checked = list(_checked_nodes(nodes, PodRouting(routing or PodRouting.AUTO)))
            per_pod = frozenset(node.meta.name for node in checked if node.per_pod)
            rules = ApiRules(checked, per_pod if routing and checked else None, self._settings)
        self._last = (nodes, rules)
        return rules


def network_changed(old: ApiNode | None, new: ApiNode | None) -> bool:
    """Tell whether the addresses or Pod CIDRs of a Node changed."""
    return _networks_and_addresses(old) != _networks_and_addresses(new)


def _networks_and_addresses(node: ApiNode | None) -> object:
    return None if node is None else (node.name, node.spec.pod_cidrs, node.spec.pod_cidr, node.status.addresses)


def _checked_nodes(nodes: Iterable[ApiNode], routing: PodRouting) -> Iterable[CheckedNode]:
    for raw in nodes:
        try:
            node = parse_object(raw).value
        except InputError:
            continue  # agents do not use it either
        if isinstance(node, Node):
            yield check_node(node, routing)


def _read_slices(slices: Iterable[ApiEndpointSlice], refused: dict[str, None]) -> Iterable[EndpointSlice]:
    """Yield the slices as gateways read them; `refused` gets what they do not read."""
    for raw in slices:
        if raw.address_type == "FQDN":
            message = (
                f"EndpointSlice {raw.name} has host names (addressType FQDN), which are not supported: not used"
            )
            refused[message] = None
            continue
        try:
            value = parse_object(raw).value
        except InputError as error:
            refused[f"{error}: not used"] = None
            continue
        if isinstance(value, EndpointSlice):
            yield value
