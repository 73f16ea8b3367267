"""The allow list that `clusterset init` proposes: the CIDRs that members of the new ClusterSet may claim.

Without a list a member may claim every private network that no other member has, also one that the others reach
by their default route. Only administrators know which networks are those of members.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network

from mcagent.controller.admin.cluster import Cluster
from mcagent.model.api.kubernetes import ApiNode
from mcagent.model.errors import McagentError
from mcagent.model.net import parse_network
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as


def report(cluster: Cluster) -> None:
    """Print the proposal, with the CIDRs of this cluster as far as they can be read."""
    for line in proposal(_own_cidrs(cluster)):
        cluster.report(line)


def proposal(own: Iterable[str]) -> list[str]:
    """Return the lines of the proposal. `own`: CIDRs of the leader's cluster."""
    cidrs = ", ".join(own)
    note = "  # of this cluster; add those of each member" if cidrs else ""
    return [
        "members may claim every private network that no other member has. Allow only their Service and Pod CIDRs",
        f"    members: {{allowedCIDRs: [{cidrs or 'CIDR, …'}]}}{note}",
        "in the leader's configuration, or for one member: mcagent membertoken create … --allow-cidr CIDR",
    ]


def _own_cidrs(cluster: Cluster) -> list[str]:
    """Return the Service CIDR, and the smallest network with the Pod CIDRs of all Nodes; [] if unreadable."""
    try:
        pods = [cidr for node in cluster.objects(Kind.NODE) for cidr in read_as(ApiNode, node).spec.pod_cidrs]
        return [cluster.service_cidr(), *map(str, enclosing(pods))]
    except McagentError:
        return []


def enclosing(cidrs: Iterable[str]) -> list[IPv4Network]:
    """Return the smallest network that contains all IPv4 CIDRs; [] without any."""
    networks = [network for cidr in cidrs if isinstance(network := parse_network(cidr)[0], IPv4Network)]
    if not networks:
        return []
    smallest = networks[0]
    while not all(network.subnet_of(smallest) for network in networks):
        smallest = smallest.supernet()
    return [smallest]
