"""What the kernel is told of imported Services: rules of nft that give new connections their shares of endpoints.

Owns the values that say so of one Service, and their text. A Service has a chain of its own, so that a changed
endpoint writes that chain and no other; a map leads to it by the Service's address, so that a packet meets the
rules of its Service alone, however many there are. Who gets which share is `mcagent.core.imported_services`'.

The kernel asks the chains of nft and iptables that translate destinations one after the other, by priority, and
none after the one that has decided (nf_nat_inet_fn in net/netfilter/nf_nat_core.c): -101 is before kube-proxy's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from mcagent.core.addresses.rules import merge_networks
from mcagent.model.config import Config
from mcagent.model.net import Address, host_network
from mcagent.model.plan import Fragment
from mcagent.model.problem import Problem
from mcagent.model.resources import NftChain, NftSet

SLOTS = 1 << 16  # a share is rounded to one of these
_SEED = "0x6d63"  # the same on every Node: a client keeps its endpoint wherever it asks from
_JUMPS = 500  # Services that one map leads to: it is one message of netlink
_RULE = re.compile(r"ip daddr (\S+) (\w+) dport (\d+) dnat ip to .* map \{ (.*) \}")
_ELEMENT = re.compile(r"(\d+)(?:-(\d+))? : (\S+) \. (\d+)")

Socket = tuple[Address, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortShares:
    """What becomes of new connections to a port: endpoints, each with the end of its share of `SLOTS`.

    `needless`: kube-proxy gives the same shares, so the kernel is told nothing.
    """

    address: Address
    protocol: str
    port: int
    by_client: bool  # all connections of a client go to the same endpoint
    shares: tuple[tuple[int, Socket], ...]
    needless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """An imported Service's ports, its endpoints in this cluster, and what is wrong."""

    ports: tuple[PortShares, ...] = ()
    own: tuple[Address, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRules:
    """The chains of one Service by its addresses, and its endpoints in this cluster."""

    chains: tuple[tuple[Address, NftChain], ...] = ()
    own: tuple[Address, ...] = ()


def service_rules(decided: Decided, config: Config) -> ServiceRules:
    """Return the rules of one Service; none where kube-proxy chooses, or would choose alike."""
    ports = [port for port in decided.ports if not port.needless]
    chains = tuple(
        (address, _chain(config, _name(address), *(_rule(one) for one in ports if one.address == address)))
        for address in dict.fromkeys(port.address for port in ports)
    )
    return ServiceRules(chains=chains, own=decided.own if chains else ())


def fragment(services: Mapping[str, ServiceRules], config: Config) -> Fragment:
    """Return the chains of all Services, and those that lead to them; nothing where no Service has any.

    Of two Services that claim an address the first one has it.
    """
    chains: dict[Address, NftChain] = {}
    for _, rules in sorted(services.items()):
        for address, chain in rules.chains:
            chains.setdefault(address, chain)
    if not chains:
        return Fragment(owner="imported", resources=())
    own = sorted({address for rules in services.values() for address in rules.own}, key=int)
    addresses = sorted(chains, key=int)
    jumps = tuple(_jumps(addresses))
    from_bridge = f'iifname "{config.host_port}" accept'
    # An endpoint that calls itself by the Service's address has to see another sender than itself.
    others = [f"ip {end} != @mct_import_own accept" for end in ("saddr", "daddr")]
    return Fragment(
        owner="imported",
        resources=(
            NftSet(
                table=config.nft_table,
                name="mct_import_own",
                elements=tuple(merge_networks(map(host_network, own))),
            ),
            *map(chains.__getitem__, addresses),
            _chain(config, "mct_import_pre", from_bridge, *jumps, hook="prerouting", priority=-101),
            _chain(config, "mct_import_out", *jumps, hook="output", priority=-101),
            _chain(config, "mct_import_self", *others, *map(_hairpin, own), hook="postrouting", priority=98),
        ),
    )


def shares_said(rule: str, address: Address, protocol: str, port: int) -> tuple[tuple[Socket, float], ...]:
    """Return the endpoints that a rule of ours gives a Service's port, each with its share of 1; () if none."""
    said = _RULE.fullmatch(rule)
    if said is None or said.groups()[:3] != (str(address), protocol, str(port)):
        return ()
    found: dict[Socket, float] = {}
    for first, last, endpoint, number in _ELEMENT.findall(said[4]):
        socket = ip_address(endpoint), int(number)
        found[socket] = found.get(socket, 0) + (int(last or first) - int(first) + 1) / SLOTS
    return tuple(found.items())


def _chain(config: Config, name: str, *rules: str, hook: str = "", priority: int = 0) -> NftChain:
    """Return a chain; without a hook one that other chains jump to."""
    kind = "nat" if hook else ""
    return NftChain(table=config.nft_table, name=name, type=kind, hook=hook, priority=priority, rules=rules)


def _name(address: Address) -> str:
    return f"mct_import_{address}".replace(".", "_")


def _jumps(addresses: list[Address]) -> Iterator[str]:
    for first in range(0, len(addresses), _JUMPS):
        some = addresses[first : first + _JUMPS]
        yield f"ip daddr vmap {{ {', '.join(f'{one} : jump {_name(one)}' for one in some)} }}"


def _rule(port: PortShares) -> str:
    chosen = f"jhash ip saddr mod {SLOTS} seed {_SEED}" if port.by_client else f"numgen random mod {SLOTS}"
    starts = (0, *(end for end, _ in port.shares))
    elements = ", ".join(
        f"{_span(start, end - 1)} : {address} . {number}"
        for start, (end, (address, number)) in zip(starts, port.shares, strict=False)
    )
    return f"ip daddr {port.address} {port.protocol} dport {port.port} dnat ip to {chosen} map {{ {elements} }}"


def _span(first: int, last: int) -> str:
    return f"{first}-{last}" if first < last else f"{first}"


def _hairpin(address: Address) -> str:
    return f"ip saddr {address} ip daddr {address} ct status dnat masquerade"
