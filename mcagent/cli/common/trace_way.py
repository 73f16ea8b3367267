"""From hop to hop: what a Node's switch does with a packet, which Node comes next, and both in words.

Decides by what agents' pages say (/status, /trace). Asks through the function that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, ip_network
from typing import Any
from urllib.parse import urlencode

from mcagent.core.trace import CAUSES, Outcome, Probe
from mcagent.model.errors import McagentError

MAX_HOPS = 8
Page = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One Node. `walk`: its page /trace, None where it was not asked; `why` says why not, or what is known."""

    node: str
    cluster: str
    role: str
    probe: Probe | None = None
    walk: Page | None = None
    tunnel: Page | None = None  # that it leaves by
    gateways: tuple[Page, ...] = ()  # among which it was chosen
    why: str = ""


def follow(
    start: str, probe: Probe, statuses: Mapping[str, Page], ask: Callable[[str, str], Page]
) -> Iterator[Hop]:
    """Yield the hops of a packet that Node `start` sends. `statuses`: /status of all that can be asked."""
    node = start
    for _ in range(MAX_HOPS):
        status = statuses[node]
        here = _hop(node, status, probe)
        if node == start and not _is_remote(status, probe.destination):
            yield replace(here, why="it never comes to mcagent: no other cluster has this address")
            return
        try:
            walk = ask(node, "/trace?" + urlencode(_query(probe)))
        except McagentError as error:
            yield replace(here, why=f"not asked: {error}")
            return
        tunnel = next((one for one in status["tunnels"] if one["ofport"] == walk["out_port"]), None)
        yield replace(here, walk=walk, tunnel=tunnel, gateways=_chosen_among(status, tunnel))
        if walk["outcome"] != Outcome.TUNNEL or tunnel is None:
            return
        following = _next(tunnel, statuses)
        if following is None:
            yield Hop(
                node=str(tunnel["remoteIP"]),
                cluster=str(tunnel["peer"]) if tunnel["peerKind"] == "remote" else here.cluster,
                role="gateway" if tunnel["peerKind"] == "remote" else "",
                why="not asked: give --remote-context NAME, or list its agent in --agents FILE",
            )
            return
        in_port = _port_to(statuses[following], status, node)
        if in_port is None:
            why = f"it has no tunnel from {node}, and drops what comes: does it know this cluster's gateways?"
            yield replace(_hop(following, statuses[following], None), why=why)
            return
        probe = replace(
            probe,
            in_port=in_port,
            source=IPv4Address(walk["source"]),
            destination=IPv4Address(walk["destination"]),
            source_port=walk["source_port"],
            port=walk["port"],
            mac=walk["mac"],
        )
        node = following


def _hop(node: str, status: Page, probe: Probe | None) -> Hop:
    cluster, role = str(status["clusterID"]), str(status["summary"].get("role", ""))
    return Hop(node=node, cluster=cluster, role=role, probe=probe)


def delivered(hops: Sequence[Hop]) -> bool:
    """Tell whether the packet gets to the kernel of its Node, as far as was asked."""
    return bool(hops) and hops[-1].walk is not None and hops[-1].walk["outcome"] == Outcome.HOST


def _query(probe: Probe) -> dict[str, object]:
    return {
        "in_port": probe.in_port,
        "source": probe.source,
        "destination": probe.destination,
        "protocol": probe.protocol,
        "source_port": probe.source_port,
        "port": probe.port,
        "mac": probe.mac,
    }


def _is_remote(status: Page, address: IPv4Address) -> bool:
    clusters = status["summary"].get("clusters", {}).values()
    # Where an address leads that is a remote gateway's, the flows say.
    gateways = {gateway for cluster in clusters for gateway in cluster["gateways"]}
    return str(address) in gateways or any(
        address in ip_network(cidr) for cluster in clusters for cidr in cluster["cidrs"]
    )


def _chosen_among(status: Page, tunnel: Page | None) -> tuple[Page, ...]:
    for cluster in status["gateways"]:
        if tunnel is not None and any(one["tunnel"] == tunnel["name"] for one in cluster["gateways"]):
            return tuple(one for one in cluster["gateways"] if one["tunnel"])
    return ()


def _next(tunnel: Page, statuses: Mapping[str, Page]) -> str | None:
    """Return the Node at the other end of a tunnel, None if it cannot be asked."""
    if tunnel["peerKind"] != "remote":
        return tunnel["peer"] if tunnel["peer"] in statuses else None
    for node, status in statuses.items():
        if status["clusterID"] == tunnel["peer"] and tunnel["remoteIP"] in _ends(status, node):
            return node
    return None


def _ends(status: Page, node: str) -> set[str]:
    """Return where tunnels to a gateway end: addresses that it has as such, as its own cluster knows them."""
    own = [one for one in status["summary"].get("gateways", ()) if one["node"] == node]
    return {str(one[key]) for one in own for key in ("gateway_ip", "source")}


def _port_to(status: Page, before: Page, node: str) -> int | None:
    """Return the port by which a Node hears another one."""
    ends = _ends(before, node)
    for one in status["tunnels"]:
        same = one["peerKind"] != "remote" and before["clusterID"] == status["clusterID"] and one["peer"] == node
        if same or (
            one["peerKind"] == "remote" and one["peer"] == before["clusterID"] and one["remoteIP"] in ends
        ):
            return int(one["ofport"])
    return None


# --- for people and programs ------------------------------------------------------------------------------


def plain(hops: Sequence[Hop]) -> list[dict[str, Any]]:
    """Return the hops as JSON has them."""
    return [
        {
            "node": hop.node,
            "cluster": hop.cluster,
            "role": hop.role,
            "asked": hop.walk is not None,
            "packet": None if hop.probe is None else {key: str(value) for key, value in _query(hop.probe).items()},
            "walk": hop.walk,
            "tunnel": None if hop.tunnel is None else {k: hop.tunnel[k] for k in ("name", "peer", "remoteIP")},
            "why": hop.why,
        }
        for hop in hops
    ]


def text(hops: Sequence[Hop]) -> str:
    """Return a block for each hop, and the verdict."""
    blocks = ["\n".join(_lines(number, hop)) for number, hop in enumerate(hops, 1)]
    end = "delivered to the kernel of the Node" if delivered(hops) else "NOT delivered, or not known to be"
    return "\n\n".join([*blocks, f"verdict: {end}"])


def _lines(number: int, hop: Hop) -> Iterator[str]:
    role = f", {hop.role}" if hop.role else ""
    yield f"{number}. Node {hop.node} (cluster {hop.cluster or '?'}{role})"
    if hop.walk is None or hop.probe is None:
        yield f"   {hop.why}"
        return
    walk = hop.walk
    yield f"   tables      {' > '.join(walk['tables'])}"
    for what, was, now in (
        ("source", f"{hop.probe.source}", walk["source"]),
        ("destination", f"{hop.probe.destination}:{hop.probe.port}", f"{walk['destination']}:{walk['port']}"),
    ):
        if was != now:
            yield f"   translated  {what} {was} to {now}"
    outcome = walk["outcome"]
    if outcome == Outcome.TUNNEL and hop.tunnel is not None:
        kind = {"gateway": "gateway", "node": "Node"}.get(hop.tunnel["peerKind"], "a gateway of cluster")
        tunnel = hop.tunnel
        yield f"   sent        to {kind} {tunnel['peer']} at {tunnel['remoteIP']}, tunnel {tunnel['name']}"
        yield from _choice(hop)
        yield f'   counter     mcagent_tunnel_transmit_packets_total{{tunnel="{tunnel["name"]}"}}'
    elif outcome == Outcome.HOST:
        yield "   delivered   to the kernel of this Node, by mc-gw0"
    elif outcome == Outcome.UNKNOWN:
        yield f"   unknown     the trace of table {walk['table'] or '?'} ends without output or drop"
    else:
        yield f"   {outcome:<11} in table {walk['table']}: {walk['reason']}"
        cause, command = CAUSES.get(walk["reason"], ("", ""))
        yield f"   because     {cause}"
        yield f"   next        {command}"
        yield f'   counter     mcagent_dropped_packets_total{{reason="{walk["reason"]}"}}'


def _choice(hop: Hop) -> Iterator[str]:
    assert hop.tunnel is not None
    for one in hop.gateways:
        if one["tunnel"] == hop.tunnel["name"]:
            encrypted = "; encrypted (WireGuard)" if one["encrypted"] else ""
            yield f"   gateway     {one['name']}: {one['why']}{encrypted}"
        elif not one["live"]:
            yield f"   not by      {one['name']}: {one['why']}, since {one['since']}"
