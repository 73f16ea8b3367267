"""The agent's nft rules for tunnels and for its own Node, applied to one packet of IPv4 in the kernel of a Node.

Owns the meaning of the conditions that these rules have; an unknown one raises. Must not know why rules exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_network

from mcagent.model.dataplane.resources import NftChain, NftSet, Resource, Route
from mcagent.model.net import Network

# Chains that only change packets.
_WITHOUT_VERDICT = frozenset({"mct_post", "mct_mss", "mct_quoted_in", "mct_quoted_out", "mct_returned"})
_OTHER_STATEMENTS = frozenset({"counter"})


@dataclass(slots=True, kw_only=True)
class Datagram:
    """A UDP datagram of a new connection on its way through a Node, with what conntrack has of it."""

    source: IPv4Address
    destination: IPv4Address
    port: int
    source_port: int = 40000
    ttl: int = 64
    device: str = "eth0"  # by which it came in; "": the Node itself sends it
    device_kind: str = ""  # of that device, as in `ip -d link`
    behind: frozenset[IPv4Address] = frozenset()  # to which the routes to that device lead, if it is a Pod's
    out_device: str = "eth0"
    tracked: bool = True
    translated: bool = False  # by destination NAT
    mac: int = 0  # source of its Ethernet frame
    answers: bool = False  # a connection of this Node, or of a Pod here
    elsewhere: frozenset[IPv4Address] = frozenset()  # to which rules of the Node lead, whatever routes of ours say


@dataclass(kw_only=True)
class Netfilter:
    """The nft tables of a Node. `address_type`: what an address is to the Node: local, broadcast or unicast.

    Devices of Pods have no address of the Node, and no route to a peer leads to them.
    """

    address_type: Callable[[IPv4Address], str]
    sets: dict[str, NftSet] = field(default_factory=dict)
    chains: list[NftChain] = field(default_factory=list)
    learned: dict[str, set[IPv4Address]] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)  # of the agent

    @classmethod
    def of(cls, resources: Iterable[Resource], address_type: Callable[[IPv4Address], str]) -> Netfilter:
        """Build the tables of a Node from its desired state."""
        netfilter = cls(address_type=address_type)
        for resource in resources:
            if isinstance(resource, NftSet) and resource.family == "ip":
                netfilter.sets[resource.name] = resource
            elif isinstance(resource, Route):
                netfilter.routes.append(resource)
            elif isinstance(resource, NftChain) and resource.family == "ip" and resource.type == "filter":
                netfilter.chains += [resource] if resource.name not in _WITHOUT_VERDICT else []
        netfilter.chains.sort(key=lambda chain: chain.priority)
        return netfilter

    def passes(self, hook: str, datagram: Datagram) -> bool:
        """Tell whether the chains of a hook accept a datagram, whose tracking they may end."""
        chains = (chain for chain in self.chains if chain.hook == hook)
        return all(self._accepts(chain, datagram) for chain in chains)

    def _accepts(self, chain: NftChain, datagram: Datagram) -> bool:
        for rule in chain.rules:
            verdict = self._verdict(rule, datagram)
            if verdict is not None:
                return verdict
        return True

    def _verdict(self, rule: str, datagram: Datagram) -> bool | None:
        """Return whether a rule accepts or drops the datagram; None: it goes on."""
        rest = rule
        while rest:
            match, holds = _condition(rest)
            if match is None:
                statement, _, rest = rest.partition(" ")
                if statement in ("accept", "drop"):
                    return statement == "accept"
                if statement == "notrack":
                    datagram.tracked = False
                elif statement not in _OTHER_STATEMENTS:
                    raise ValueError(f'unknown in an nft rule: "{statement} {rest}" of "{rule}"')
                continue
            if not holds(self, datagram, match):
                return None
            rest = rest[match.end() :].lstrip()
        return None

    def leads_to(self, device: str, address: IPv4Address) -> bool:
        """Tell whether a route of the agent to an address leads to a device."""
        return any(address in route.destination for route in self.routes if route.device == device)

    def networks(self, text: str) -> Iterator[Network]:
        """Yield the elements of a set (`@name`), or the network of a text."""
        if not text.startswith("@"):
            yield ip_network(text)
            return
        yield from self.sets[text[1:]].elements
        yield from map(ip_network, self.learned.get(text[1:], ()))


Holds = Callable[[Netfilter, Datagram, "re.Match[str]"], bool]


def _condition(text: str) -> tuple[re.Match[str] | None, Holds]:
    """Return the condition with which a text begins (None: with none), and whether it holds."""
    for pattern, holds in _CONDITIONS:
        if match := pattern.match(text):
            return match, holds
    return None, lambda *_: False


def _port(_: Netfilter, datagram: Datagram, match: re.Match[str]) -> bool:
    port = datagram.port if match[1] == "dport" else datagram.source_port
    ports = {int(text) for text in re.findall(r"\d+", match[3])}
    return (port in ports) is not bool(match[2])


def _address(netfilter: Netfilter, datagram: Datagram, match: re.Match[str]) -> bool:
    address = datagram.source if match[1] == "saddr" else datagram.destination
    return any(address in network for network in netfilter.networks(match[3])) is not bool(match[2])


def _socket(netfilter: Netfilter, datagram: Datagram, match: re.Match[str]) -> bool:
    return (datagram.destination, datagram.port) in (netfilter.sets[match[1]].sockets or ())


def _device(_: Netfilter, datagram: Datagram, match: re.Match[str]) -> bool:
    device = datagram.device if match[1] == "iifname" else datagram.out_device
    return (device == match[3]) is not bool(match[2])


def _mac(_: Netfilter, datagram: Datagram, match: re.Match[str]) -> bool:
    mask, value = (int(text.replace(":", ""), 16) for text in match.groups())
    return datagram.mac & mask == value


def _address_type(netfilter: Netfilter, datagram: Datagram, match: re.Match[str]) -> bool:
    return netfilter.address_type(datagram.destination) in (match[1] or match[2]).split(", ")


def _leads_elsewhere(netfilter: Netfilter, datagram: Datagram, _: re.Match[str]) -> bool:
    if datagram.device == "mc-gw0":
        return datagram.source in datagram.elsewhere or not netfilter.leads_to("mc-gw0", datagram.source)
    return datagram.device_kind != "" and datagram.source not in datagram.behind


def _learn(netfilter: Netfilter, datagram: Datagram, match: re.Match[str]) -> bool:
    netfilter.learned.setdefault(match[1], set()).add(datagram.source)
    return True


_CONDITIONS: tuple[tuple[re.Pattern[str], Holds], ...] = (
    (re.compile(r"udp (dport|sport) (!= )?(\{ [\d, ]+ \}|\d+)"), _port),
    (re.compile(r"ip daddr \. udp dport @(\w+)"), _socket),
    (re.compile(r"ip (saddr|daddr) (!= )?(@\w+|[\d./]+)"), _address),
    (re.compile(r"ip ttl (\d+)"), lambda _, datagram, match: datagram.ttl == int(match[1])),
    (re.compile(r'(iifname|oifname) (!= )?"([^"]+)"'), _device),
    (re.compile(r'meta iifkind "(\w+)"'), lambda _, datagram, match: datagram.device_kind == match[1]),
    (
        re.compile(r"fib daddr \. iif type local"),
        lambda netfilter, datagram, _: (
            not datagram.device_kind and netfilter.address_type(datagram.destination) == "local"
        ),
    ),
    (re.compile(r"fib saddr \. iif oif missing"), _leads_elsewhere),
    (re.compile(r"fib daddr type (?:\{ ([a-z, ]+) \}|([a-z]+))"), _address_type),
    (re.compile(r"ether saddr & ([\da-f:]+) == ([\da-f:]+)"), _mac),
    (re.compile(r"(ct state established )?ct direction reply"), lambda _, datagram, __: datagram.answers),
    (re.compile(r"meta l4proto 1 ct state related"), lambda *_: False),
    (re.compile(r"ct status dnat"), lambda _, datagram, __: datagram.translated),
    (re.compile(r"update @(\w+) \{ [^}]+ \}"), _learn),
)
