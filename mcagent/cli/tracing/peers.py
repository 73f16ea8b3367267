"""Who is at the other end of a Node's tunnels, and which addresses lead to other clusters, by pages /status."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from ipaddress import IPv4Address, ip_network
from typing import Any

Page = Mapping[str, Any]


def is_remote(status: Page, address: IPv4Address) -> bool:
    """Tell whether a Node's flows lead an address to other clusters, by its /status."""
    clusters = status["summary"].get("clusters", {}).values()
    # Where an address leads that is a remote gateway's, the flows say.
    gateways = {gateway for cluster in clusters for gateway in cluster["gateways"]}
    return str(address) in gateways or any(
        address in ip_network(cidr) for cluster in clusters for cidr in cluster["cidrs"]
    )


def cluster_of(status: Page, address: IPv4Address) -> str:
    """Return the other cluster that has an address, "" if none has it."""
    for name, cluster in status["summary"].get("clusters", {}).items():
        if any(address in ip_network(cidr) for cidr in cluster["cidrs"]):
            return str(name)
    return ""


def chosen_among(status: Page, tunnel: Page | None) -> tuple[Page, ...]:
    """Return the gateways among which that at the end of a tunnel was chosen."""
    for cluster in status["gateways"]:
        if tunnel is not None and any(one["tunnel"] == tunnel["name"] for one in cluster["gateways"]):
            return tuple(one for one in cluster["gateways"] if one["tunnel"])
    return ()


def next_node(here: Page, tunnel: Page, statuses: Mapping[str, Page]) -> str | None:
    """Return the Node at the other end of a tunnel, None if it is none of these."""
    if tunnel["peerKind"] != "remote":
        return tunnel["peer"] if tunnel["peer"] in statuses else None
    for node, status in statuses.items():
        if status["clusterID"] == tunnel["peer"] and address_of_peer(here, tunnel) in ends(status, node):
            return node
    return None


def address_of_peer(status: Page, tunnel: Page) -> str:
    """Return the address of the gateway at the other end; encrypted tunnels end at one of their own."""
    found = (one.get("address") for one in chosen_among(status, tunnel) if one["tunnel"] == tunnel["name"])
    return str(next(found, None) or tunnel["remoteIP"])


def ends(status: Page, node: str) -> set[str]:
    """Return where tunnels to a gateway end: addresses that it has as such, as its own cluster knows them."""
    own = [one for one in status["summary"].get("gateways", ()) if one["node"] == node]
    return {str(one[key]) for one in own for key in ("gateway_ip", "source")}


def port_to(status: Page, before: Page, node: str) -> int | None:
    """Return the port by which a Node hears another one."""
    theirs = ends(before, node)
    for one in status["tunnels"]:
        same = one["peerKind"] != "remote" and before["clusterID"] == status["clusterID"] and one["peer"] == node
        if same or (
            one["peerKind"] == "remote"
            and one["peer"] == before["clusterID"]
            and address_of_peer(status, one) in theirs
        ):
            return int(one["ofport"])
    return None


def lost_tunnels(node: str, status: Page, asked: Mapping[str, Page], links: Mapping[str, str]) -> dict[str, Page]:
    """Return the tunnels of a Node that are known not to be live, each with what is said of it.

    Who was asked says so: the Node itself or the other end, else all that have a tunnel to the same gateway, else
    the Node's Gateway (`links`: the clusters to which it has no live tunnel, with the reason).
    """
    found = {}
    for tunnel in status["tunnels"]:
        sure, others = _said_of(node, status, tunnel, asked)
        dead = [one for one in sure or others if not one["live"]]
        if dead and (sure or len(dead) == len(others)):
            found[tunnel["name"]] = dead[0]
        elif not sure and not others and tunnel["peerKind"] == "remote" and tunnel["peer"] in links:
            found[tunnel["name"]] = {"why": links[tunnel["peer"]], "since": ""}
    return found


def _said_of(node: str, status: Page, tunnel: Page, asked: Mapping[str, Page]) -> tuple[list[Page], list[Page]]:
    """Return what is said of a tunnel by its two ends, and by other Nodes of the cluster of the same gateway."""
    remote = tunnel["peerKind"] == "remote"
    peer = address_of_peer(status, tunnel) if remote else tunnel["peer"]
    far = asked.get(next_node(status, tunnel, asked) or "")
    back = (status["clusterID"], ends(status, node)) if remote else ("", {node})
    siblings = (page for name, page in asked.items() if name != node and page["clusterID"] == status["clusterID"])
    own = (one for one in _entries(asked.get(node)) if one["tunnel"] == tunnel["name"])
    return (
        [*own, *_entries(far, *back)],
        [one for page in siblings for one in _entries(page, tunnel["peer"] if remote else "", {str(peer)})],
    )


def _entries(status: Page | None, cluster: str = "", names: Collection[str] | None = None) -> Iterator[Page]:
    """Yield what a Node says of gateways: of those of a cluster ("": its own) with such names or addresses."""
    for group in status["gateways"] if status is not None else ():
        for one in group["gateways"]:
            named = names is None or (group["cluster"] == cluster and {one["name"], one["address"]} & {*names})
            if one["tunnel"] and named:
                yield one
