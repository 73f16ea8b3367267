"""From hop to hop: what a Node's switch does with a packet and with the answer to it, and which Node comes next.

Decides by what agents' pages say (/status, /trace). Asks through the function that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, ip_network
from typing import Any
from urllib.parse import urlencode

from flows.pipeline.registers import HOST_OFPORT
from mcagent.core.trace import Outcome, Probe
from mcagent.model.errors import McagentError

MAX_HOPS = 8
Page = Mapping[str, Any]
_ALWAYS = ("in_port", "source", "destination", "protocol", "source_port", "port", "mac")
_IF_ANY = ("service", "identity", "mark", "label")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One Node. `walk`: its page /trace, None where it was not asked; `why` says why not, or what is known.

    `walk` has the packet as it leaves; what conntrack translates back is in there, too.
    """

    node: str
    cluster: str
    role: str
    probe: Probe | None = None
    walk: Page | None = None
    tunnel: Page | None = None  # that it leaves by
    gateways: tuple[Page, ...] = ()  # among which it was chosen
    why: str = ""

    @property
    def encrypted(self) -> bool | None:
        """Whether what it is sent by encrypts; None where it is sent by no tunnel between clusters."""
        if self.tunnel is None or self.tunnel["peerKind"] != "remote":
            return None
        return any(one["encrypted"] for one in self.gateways if one["tunnel"] == self.tunnel["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Whom hops are asked of. `statuses`: /status of all that can be asked; `errors`: why others cannot."""

    statuses: Mapping[str, Page]
    ask: Callable[[str, str], Page]
    errors: Mapping[str, str] = field(default_factory=dict)

    def forth(self, start: str, probe: Probe) -> Iterator[Hop]:
        """Yield the hops of the first packet of a connection that Node `start` sends."""
        if not is_remote(self.statuses[start], probe.destination):
            why = "it never comes to mcagent: no other cluster has this address"
            yield replace(_hop(start, self.statuses[start], probe), why=why)
            return
        yield from self._hops(start, probe, {})

    def back(self, hops: Sequence[Hop]) -> Iterator[Hop]:
        """Yield the hops of the answer to a packet that was delivered: what its Nodes keep of it, they know."""
        last = hops[-1]
        if last.probe is None or last.walk is None or not delivered(hops):
            return
        answer = replace(
            _leaving(last.probe, last.walk),
            source=IPv4Address(last.walk["destination"]),
            destination=IPv4Address(last.walk["source"]),
            source_port=last.walk["port"],
            port=last.walk["source_port"],
        )
        answer = replace(answer, in_port=HOST_OFPORT, mac="plain", service=0, identity=0)
        yield from self._hops(last.node, answer, {hop.node: hop for hop in hops})

    def _hops(self, node: str, probe: Probe, known: Mapping[str, Hop]) -> Iterator[Hop]:
        for _ in range(MAX_HOPS):
            status, before = self.statuses[node], known.get(node)
            probe = _as_answer(probe, before)
            here = _hop(node, status, probe)
            try:
                walk = self.ask(node, "/trace?" + query(probe))
            except McagentError as error:
                yield replace(here, why=f"not asked: {error}")
                return
            walk = _translated_back(walk, before)
            tunnel = next((one for one in status["tunnels"] if one["ofport"] == walk["out_port"]), None)
            yield replace(here, walk=walk, tunnel=tunnel, gateways=_chosen_among(status, tunnel))
            if walk["outcome"] != Outcome.TUNNEL or tunnel is None:
                return
            following = _next(status, tunnel, self.statuses)
            if following is None:
                yield self._silent(here, tunnel)
                return
            in_port = _port_to(self.statuses[following], status, node)
            if in_port is None:
                why = f"it has no tunnel from {node}, and drops what comes: does it know this cluster's gateways?"
                yield replace(_hop(following, self.statuses[following], None), why=why)
                return
            probe = replace(_leaving(probe, walk), in_port=in_port)
            node = following

    def _silent(self, before: Hop, tunnel: Page) -> Hop:
        remote = tunnel["peerKind"] == "remote"
        peer, address = str(tunnel["peer"]), _address(self.statuses[before.node], tunnel)
        why = "not asked: give --remote-context NAME, or list its agent in --agents FILE"
        if not remote and peer in self.errors:
            why = f"not asked: {self.errors[peer]}"
        elif remote and self.errors and any(one["clusterID"] == peer for one in self.statuses.values()):
            told = "; ".join(f"{node}: {error}" for node, error in sorted(self.errors.items()))
            why = f"not asked: no agent that answers has this address ({told})"
        return Hop(
            node=address if remote else peer,
            cluster=peer if remote else before.cluster,
            role="gateway" if remote or tunnel["peerKind"] == "gateway" else "",
            why=why,
        )


def delivered(hops: Sequence[Hop]) -> bool:
    """Tell whether the packet gets to the kernel of its Node, as far as was asked."""
    return bool(hops) and hops[-1].walk is not None and hops[-1].walk["outcome"] == Outcome.HOST


def answered(hops: Sequence[Hop], back: Sequence[Hop]) -> bool:
    """Tell whether the answer gets to the kernel of the Node that the packet came from, as far as was asked."""
    return delivered(back) and back[-1].node == hops[0].node


def query(probe: Probe) -> str:
    """Return a packet as pages of the agent take it."""
    values = {key: str(getattr(probe, key)) for key in _ALWAYS}
    values |= {key: str(value) for key in _IF_ANY if (value := getattr(probe, key))}
    return urlencode({**values, **({"reply": "1"} if probe.reply else {})})


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


def _hop(node: str, status: Page, probe: Probe | None) -> Hop:
    cluster, role = str(status["clusterID"]), str(status["summary"].get("role", ""))
    return Hop(node=node, cluster=cluster, role=role, probe=probe)


def _leaving(probe: Probe, walk: Page) -> Probe:
    """Return the packet as it leaves a Node."""
    return replace(
        probe,
        source=IPv4Address(walk["source"]),
        destination=IPv4Address(walk["destination"]),
        source_port=walk["source_port"],
        port=walk["port"],
        mac=walk["mac"],
        service=walk.get("service", 0),
        identity=walk.get("identity", 0),
    )


def _as_answer(probe: Probe, before: Hop | None) -> Probe:
    """Return a packet as a Node takes it that knows the connection by what it has committed, or does not."""
    kept = before.walk.get("committed") if before is not None and before.walk is not None else None
    if not kept:
        return replace(probe, reply=False, mark=0, label=0)
    # The zone that a request passes last its answer passes first; of the others nothing that they keep is matched.
    return replace(probe, reply=True, mark=kept[-1]["mark"], label=kept[-1]["label"])


def _translated_back(walk: Page, before: Hop | None) -> Page:
    """Return an answer's walk with the addresses that conntrack gives it back, which a trace does not show."""
    if before is None or before.probe is None or before.walk is None:
        return walk
    was, became, back = before.probe, before.walk, dict(walk)
    if "UnDnat" in walk["tables"] and (walk["source"], walk["source_port"]) == (
        became["destination"],
        became["port"],
    ):
        back |= {"source": str(was.destination), "source_port": was.port}
    if "UnSnat" in walk["tables"] and (walk["destination"], walk["port"]) == (
        became["source"],
        became["source_port"],
    ):
        back |= {"destination": str(was.source), "port": was.source_port}
    return back


def _chosen_among(status: Page, tunnel: Page | None) -> tuple[Page, ...]:
    for cluster in status["gateways"]:
        if tunnel is not None and any(one["tunnel"] == tunnel["name"] for one in cluster["gateways"]):
            return tuple(one for one in cluster["gateways"] if one["tunnel"])
    return ()


def _next(here: Page, tunnel: Page, statuses: Mapping[str, Page]) -> str | None:
    """Return the Node at the other end of a tunnel, None if it cannot be asked."""
    if tunnel["peerKind"] != "remote":
        return tunnel["peer"] if tunnel["peer"] in statuses else None
    for node, status in statuses.items():
        if status["clusterID"] == tunnel["peer"] and _address(here, tunnel) in _ends(status, node):
            return node
    return None


def _address(status: Page, tunnel: Page) -> str:
    """Return the address of the gateway at the other end; encrypted tunnels end at one of their own."""
    addresses = (one.get("address") for one in _chosen_among(status, tunnel) if one["tunnel"] == tunnel["name"])
    return str(next(addresses, None) or tunnel["remoteIP"])


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
            one["peerKind"] == "remote" and one["peer"] == before["clusterID"] and _address(status, one) in ends
        ):
            return int(one["ofport"])
    return None
