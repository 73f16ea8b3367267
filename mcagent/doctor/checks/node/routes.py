"""Check `routes`: the kernel's own lookup leads to our device for every network of other clusters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from ipaddress import ip_address

from mcagent.api.doctor import CheckFinding
from mcagent.dataplane.netlink.connection import NetlinkSocket
from mcagent.dataplane.netlink.links import read_links
from mcagent.dataplane.netlink.routes import RTN_UNICAST, read_routes, read_rules, route_to
from mcagent.doctor.check import DoctorCheck, failed
from mcagent.doctor.examined import ExaminedNode
from mcagent.model.net import Address, Network

CHECK = DoctorCheck(
    name="routes",
    order=90,
    summary="the kernel's own lookup leads to our device for every network of other clusters",
    causes={
        "RouteShadowed": failed(
            "packets for that network leave by another device: a foreign rule or route comes before ours",
            "ip rule; ip route get {address}; choose rulePriority below the foreign rule's, or protect the "
            "network with protectedCIDRs if it is your own",
        ),
        "RulesMissing": failed(
            "the kernel of this Node has no route to other clusters",
            "mcagent plan; ip rule; ip route show table {table}",
        ),
    },
)
_MOST_ROUTES = 256  # networks whose lookup is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteLookup:
    """The kernel's route to an address: the device, and the table of the route."""

    destination: Network
    address: Address
    device: str
    table: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteLookups:
    """The networks that our table leads to the host port, and whether there is a rule for our table."""

    lookups: tuple[RouteLookup, ...] = ()
    rule_exists: bool = False


def lookups(node: ExaminedNode) -> RouteLookups:
    """Look up an address in each network that our table leads to the host port. Raises BackendError."""
    config = node.config
    with closing(NetlinkSocket()) as netlink:
        names = {link.index: link.state.name for link in read_links(netlink)}
        destinations = [
            route.destination
            for route in read_routes(netlink, config.route_table, config.route_protocol)
            if route.type == RTN_UNICAST and names.get(route.oif) == config.host_port
        ]
        results = []
        for destination in destinations[:_MOST_ROUTES]:
            address = _address_in(destination)
            route = route_to(netlink, address)
            device, table = (names.get(route.oif, ""), route.table) if route is not None else ("", 0)
            results.append(RouteLookup(destination=destination, address=address, device=device, table=table))
        rules = read_rules(netlink, config.route_protocol)
        exists = any(rule.table == config.route_table for rule, _ in rules)
    return RouteLookups(lookups=tuple(results), rule_exists=exists)


def _address_in(network: Network) -> Address:
    """Return an address of the network that is likely no tunnel endpoint."""
    middle = (network.num_addresses - 1) // 2 + (network.num_addresses > 1)
    return ip_address(int(network.network_address) + middle)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Evaluate the kernel's lookups for networks of other clusters."""
    reading, host_port = node.read(lookups), node.config.host_port
    if reading.lookups and not reading.rule_exists:
        yield CHECK.finding("RulesMissing", "our rule is missing", table=node.config.route_table)
        return
    shadowed = [result for result in reading.lookups if result.device != host_port]
    for result in shadowed:
        text = f"{result.address} leads to {result.device or 'nowhere'} (table {result.table}), not to {host_port}"
        yield CHECK.finding("RouteShadowed", text, subject=str(result.destination), address=result.address)
    if not shadowed:
        yield CHECK.passed(f"{len(reading.lookups)} networks of other clusters by {host_port}")
