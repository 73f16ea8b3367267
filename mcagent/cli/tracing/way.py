"""From hop to hop: what a Node's switch does with a packet and with the answer to it, and which Node comes next.

Decides by what agents' pages say (/status, /trace). Asks through the functions that it is given; a Node that
cannot be asked has a stand-in, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import IPv4Address
from typing import Protocol
from urllib.parse import urlencode

from flows.pipeline.registers import HOST_OFPORT
from mcagent.cli.common.antrea import antrea_clusters
from mcagent.cli.tracing.peers import Page, address_of_peer, chosen_among, is_remote, next_node, port_to
from mcagent.core.trace import Outcome, Probe
from mcagent.model.errors import McagentError

MAX_HOPS = 8
_ALWAYS = ("in_port", "source", "destination", "protocol", "source_port", "port", "mac")
_IF_ANY = ("service", "identity", "mark", "label")
_UNKNOWN = "no agent of it is known"


class Origin(StrEnum):
    """Where a walk is from."""

    SWITCH = "switch"
    SIMULATOR = "simulator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One Node. `walk`: its page /trace, None where there is none; `why` says why not, or what is known.

    `walk` has the packet as it leaves; what conntrack translates back is in there, too. `unasked`: why the Node's
    agent did not say it.
    """

    node: str
    cluster: str
    role: str
    probe: Probe | None = None
    walk: Page | None = None
    origin: Origin = Origin.SWITCH  # of `walk`
    tunnel: Page | None = None  # that it leaves by
    gateways: tuple[Page, ...] = ()  # among which it was chosen
    unasked: str = ""
    why: str = ""

    @property
    def asked(self) -> bool:
        """Whether the Node's own switch has said what it does."""
        return self.walk is not None and self.origin is Origin.SWITCH

    @property
    def encrypted(self) -> bool | None:
        """Whether what it is sent by encrypts; None where it is sent by no tunnel between clusters."""
        if self.tunnel is None or self.tunnel["peerKind"] != "remote":
            return None
        return any(one["encrypted"] for one in self.gateways if one["tunnel"] == self.tunnel["name"])


class StandIn(Protocol):
    """A Node that cannot be asked, as it should be: its page /status, and what that rests on."""

    @property
    def node(self) -> str:
        """Its name."""

    @property
    def status(self) -> Page:
        """Its page /status."""

    @property
    def assumed(self) -> tuple[str, ...]:
        """What is assumed of it."""

    def page(self, probe: Probe) -> Page:
        """Return its page /trace."""


StandIns = Callable[[str, str, Mapping[str, Page]], StandIn | None]
"""Takes a cluster ("": that of the first Node), a Node or a gateway's address, and /status of all that were asked.

None: nothing of that cluster can be read. Raises McagentError.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Whom hops are asked of. `statuses`: /status of all that can be asked; `errors`: why others cannot."""

    statuses: Mapping[str, Page]
    ask: Callable[[str, str], Page]
    errors: Mapping[str, str] = field(default_factory=dict)
    simulate: StandIns = lambda *_: None
    _stand_ins: dict[str, tuple[StandIn, str]] = field(default_factory=dict)  # with why the Node is not asked

    def begin(self, start: str) -> None:
        """Make sure that there is something to say of the first Node. Raises McagentError."""
        if start not in self.statuses:
            self._stand_in("", start, self.errors.get(start, _UNKNOWN))

    def status(self, node: str) -> Page:
        """Return the page /status of a Node that is asked, or of its stand-in."""
        return self._stand_ins[node][0].status if node in self._stand_ins else self.statuses[node]

    def walked(self, node: str, probe: Probe) -> tuple[Page, StandIn | None, str]:
        """Return a Node's page /trace, who stands in for it if somebody does, and why. Raises McagentError."""
        if node not in self._stand_ins:
            try:
                return self.ask(node, "/trace?" + query(probe)), None, ""
            except McagentError as error:
                self._stand_in(str(self.statuses[node]["clusterID"]), node, str(error))
        stand_in, why = self._stand_ins[node]
        return stand_in.page(probe), stand_in, why

    def forth(self, start: str, probe: Probe) -> Iterator[Hop]:
        """Yield the hops of the first packet of a connection that Node `start` sends."""
        if not is_remote(self.status(start), probe.destination):
            why = "it never reaches mcagent: no other cluster has this address"
            yield replace(_hop(start, self.status(start), probe), why=why)
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
            status, before = self.status(node), known.get(node)
            probe = _as_answer(probe, before)
            here = _hop(node, status, probe)
            try:
                walk, stand_in, why = self.walked(node, probe)
            except McagentError as error:
                yield replace(here, why=f"not asked: {error}")
                return
            if stand_in is not None:
                here = _simulated(here, stand_in, why)
            walk = _translated_back(walk, before)
            tunnel = next((one for one in status["tunnels"] if one["ofport"] == walk["out_port"]), None)
            yield replace(here, walk=walk, tunnel=tunnel, gateways=chosen_among(status, tunnel))
            if walk["outcome"] != Outcome.TUNNEL or tunnel is None:
                return
            try:
                following = self._following(status, tunnel)
            except McagentError as error:
                yield _silent(here, status, tunnel, str(error))
                return
            in_port = port_to(self.status(following), status, node)
            if in_port is None:
                why = f"it has no tunnel from {node}, and drops the packet: does it know this cluster's gateways?"
                yield replace(_hop(following, self.status(following), None), why=why)
                return
            probe = replace(_leaving(probe, walk), in_port=in_port)
            node = following

    def _following(self, status: Page, tunnel: Page) -> str:
        """Return the Node at the other end of a tunnel. Raises McagentError: nothing can be said of it."""
        every = {**self.statuses, **{node: one.status for node, (one, _) in self._stand_ins.items()}}
        found = next_node(status, tunnel, every)
        if found is not None:
            return found
        remote, peer = tunnel["peerKind"] == "remote", str(tunnel["peer"])
        who = address_of_peer(status, tunnel) if remote else peer
        if remote and any(peer in antrea_clusters(page["summary"]) for page in every.values()):
            raise McagentError(f"cluster {peer} runs Antrea, whose flows are not known")
        return self._stand_in(peer if remote else str(status["clusterID"]), who, self._why_not(tunnel))

    def _stand_in(self, cluster: str, who: str, why: str) -> str:
        """Find a stand-in for a Node that is not asked for this reason; return its name. Raises McagentError."""
        try:
            found = self.simulate(cluster, who, self.statuses)
        except McagentError as error:
            raise McagentError(f"{why}; nor can it be simulated: {error}") from None
        if found is None:
            raise McagentError(why)
        known = self.statuses.get(found.node)
        if known is not None and known["clusterID"] != found.status["clusterID"]:
            raise McagentError(
                f"{why}; nor can it be simulated: cluster {known['clusterID']} has a Node {found.node}, too"
            )
        if who == found.node:
            self._stand_ins[who] = found, why
        elif found.node not in self.statuses:
            self._stand_ins[found.node] = found, self.errors.get(found.node, _UNKNOWN)
        return found.node

    def _why_not(self, tunnel: Page) -> str:
        """Return why the Node at the other end of a tunnel is not asked."""
        remote, peer = tunnel["peerKind"] == "remote", str(tunnel["peer"])
        if not remote and peer in self.errors:
            return self.errors[peer]
        if remote and self.errors and any(one["clusterID"] == peer for one in self.statuses.values()):
            told = "; ".join(f"{node}: {error}" for node, error in sorted(self.errors.items()))
            return f"no agent that answers has this address ({told})"
        return "give --remote-context NAME, or list its agent in --agents FILE"


def delivered(hops: Sequence[Hop]) -> bool:
    """Tell whether the packet gets to the kernel of its Node, as far as is known."""
    return bool(hops) and hops[-1].walk is not None and hops[-1].walk["outcome"] == Outcome.HOST


def answered(hops: Sequence[Hop], back: Sequence[Hop]) -> bool:
    """Tell whether the answer gets to the kernel of the Node that the packet came from, as far as is known."""
    return delivered(back) and back[-1].node == hops[0].node


def query(probe: Probe) -> str:
    """Return a packet as pages of the agent take it."""
    values = {key: str(getattr(probe, key)) for key in _ALWAYS}
    values |= {key: str(value) for key in _IF_ANY if (value := getattr(probe, key))}
    return urlencode({**values, **({"reply": "1"} if probe.reply else {})})


def _hop(node: str, status: Page, probe: Probe | None) -> Hop:
    cluster, role = str(status["clusterID"]), str(status["summary"].get("role", ""))
    return Hop(node=node, cluster=cluster, role=role, probe=probe)


def _simulated(hop: Hop, stand_in: StandIn, unasked: str) -> Hop:
    why = f"{unasked}; what its flows should be, not what they are. Assumed: {'; '.join(stand_in.assumed)}"
    return replace(hop, origin=Origin.SIMULATOR, unasked=unasked, why=f"simulated: {why}")


def _silent(before: Hop, status: Page, tunnel: Page, why: str) -> Hop:
    """Return the hop at the other end of a tunnel, of which nothing can be said."""
    remote, peer = tunnel["peerKind"] == "remote", str(tunnel["peer"])
    return Hop(
        node=address_of_peer(status, tunnel) if remote else peer,
        cluster=peer if remote else before.cluster,
        role="gateway" if remote or tunnel["peerKind"] == "gateway" else "",
        why=f"not asked: {why}",
    )


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
