"""The Nodes of three clusters and their addresses; rules of kube-proxy. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network

from mcagent.core.addresses.underlay import endpoint_of, mapped_addresses
from mcagent.model.net import Address

GENEVE, WIREGUARD = 6081, 51821
CLUSTERS = ("east", "west", "north")
NODES = ("g1", "g2", "w1")
GATEWAYS = ("g1", "g2")
LARGE_TTL = 255  # that tunnels send (RFC 5082)
SERVICE_PORT, POD_PORT = 80, 8080
# Of a Node's Pod CIDR: the address of the CNI's bridge, and the broadcast address.
BRIDGE_HOST, BROADCAST_HOST = 1, 255
OUTSIDE = IPv4Address("198.51.100.1")  # of a server outside; `CLAIMANT` names it as a gateway of its own
CLAIMANT = "north"


def number_of(cluster: str) -> int:
    """Return the number in all addresses of a cluster."""
    return CLUSTERS.index(cluster) + 1


@cache
def node_address(cluster: str, node: str) -> IPv4Address:
    """Return the address of a Node, at which its tunnels end."""
    return IPv4Address(f"192.168.{number_of(cluster)}.{11 + NODES.index(node)}")


def second_address(cluster: str, node: str) -> IPv4Address:
    """Return an address of a Node at which no tunnel ends."""
    return node_address(cluster, node) + 200


@cache
def pod_address(cluster: str, node: str, host: int = 5) -> IPv4Address:
    """Return the address of a Pod on a Node."""
    return IPv4Address(f"10.{number_of(cluster)}.{1 + NODES.index(node)}.{host}")


@cache
def service_address(cluster: str) -> IPv4Address:
    """Return the ClusterIP of a cluster's exported Service, with an endpoint on its worker."""
    return IPv4Address(f"10.{100 + number_of(cluster)}.0.7")


@cache
def owner_of(address: Address) -> str:
    """Return the cluster that an address belongs to; "" if it is none's."""
    for cluster in CLUSTERS:
        number = number_of(cluster)
        texts = (f"10.{number}.0.0/16", f"10.{100 + number}.0.0/16", f"192.168.{number}.0/24")
        if any(address in IPv4Network(text) for text in texts):
            return cluster
    return ""


@cache
def gateway_behind(address: Address) -> Address:
    """Return the gateway whose mapped address this is; the address itself if it is none."""
    addresses = (OUTSIDE, *(node_address(cluster, node) for cluster in CLUSTERS for node in GATEWAYS))
    return next((source for source in addresses if next(mapped_addresses(source)) == address), address)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A Node, by the names of its cluster and its own."""

    cluster: str
    node: str

    @property
    def name(self) -> str:
        """The name of its switch."""
        return f"{self.cluster}-{self.node}"

    @property
    def address(self) -> IPv4Address:
        """Its address, at which its tunnels end."""
        return node_address(self.cluster, self.node)

    @property
    def addresses(self) -> tuple[IPv4Address, ...]:
        """The addresses on its devices."""
        return (self.address, second_address(self.cluster, self.node))

    @property
    def gateway(self) -> bool:
        """Whether it is a gateway."""
        return self.node in GATEWAYS

    def __str__(self) -> str:
        return f"{'gateway' if self.gateway else 'worker'} {self.name} ({self.address})"


PLACES = tuple(Place(cluster=cluster, node=node) for cluster in CLUSTERS for node in NODES)


@dataclass(frozen=True, kw_only=True)
class KubeProxyRule:
    """A translation by kube-proxy on the Nodes of a cluster, for a Service of UDP."""

    cluster: str
    address: IPv4Address  # an externalIP, or a Node's with a NodePort
    port: int
    endpoint: IPv4Address
    endpoint_port: int

    def __str__(self) -> str:
        return (
            f"kube-proxy of cluster {self.cluster}: UDP to {self.address}:{self.port} "
            f"is translated to {self.endpoint}:{self.endpoint_port}"
        )


@cache
def endpoint(place: Place) -> IPv4Address:
    """Return the end of encrypted tunnels to a gateway."""
    address = endpoint_of(place.address)
    assert isinstance(address, IPv4Address)
    return address
