"""nft rules of imported Services: they distribute new connections to endpoints by shares.

Owns the shares of one Service as a value, and their text form. Each Service has a chain, so a changed endpoint
rewrites only that chain; a verdict map leads to it by the address of the Service, so a packet is compared only
with the rules of its Service. `mcagent.core.imported_services` decides the shares.

The kernel evaluates the destination NAT chains of nft and iptables by priority, until one has translated the
packet (nf_nat_inet_fn in net/netfilter/nf_nat_core.c). Priority -101 is before kube-proxy's chains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from mcagent.core.addresses.rules import merge_networks
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import NftChain, NftSet
from mcagent.model.net import Address, host_network
from mcagent.model.plan import Fragment
from mcagent.model.problem import Problem

SLOTS = 1 << 16  # shares are rounded to multiples of 1/SLOTS
_SEED = "0x6d63"  # the same on every Node, so that a client keeps its endpoint whichever Node translates
_JUMPS = 500  # Services per verdict map: a map is one netlink message
_RULE = re.compile(r"ip daddr (\S+) (\w+) dport (\d+) dnat ip to [^{]* map \{ ([^}]*) \}")
_ELEMENT = re.compile(r"(\d{1,5})(?:-(\d{1,5}))? : (\S+) \. (\d+)")

Socket = tuple[Address, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortShares:
    """The endpoints of a Service port, each with the end of its share of `SLOTS`.

    `same_as_kube_proxy`: kube-proxy gives the same shares, so no rule is needed.
    """

    address: Address
    protocol: str
    port: int
    by_client: bool  # all connections of a client go to the same endpoint
    shares: tuple[tuple[int, Socket], ...]
    same_as_kube_proxy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceShares:
    """The shares of an imported Service: its ports, its endpoints in this cluster (`own`), and problems."""

    ports: tuple[PortShares, ...] = ()
    own: tuple[Address, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRules:
    """The chains of one Service by its addresses, and its endpoints in this cluster."""

    chains: tuple[tuple[Address, NftChain], ...] = ()
    own: tuple[Address, ...] = ()


def service_rules(decided: ServiceShares, config: Config) -> ServiceRules:
    """Return the rules of one Service; none where kube-proxy chooses, or would choose the same."""
    ports = [port for port in decided.ports if not port.same_as_kube_proxy]
    chains = tuple(
        (address, _chain(config, _name(address), *(_rule(port) for port in ports if port.address == address)))
        for address in dict.fromkeys(port.address for port in ports)
    )
    return ServiceRules(chains=chains, own=decided.own if chains else ())


def fragment(services: Mapping[str, ServiceRules], config: Config) -> Fragment:
    """Build the fragment of all imported Services: their chains, and the hooks that jump to them.

    If two Services have the same address, the first one by key gets it. Without any chain the fragment is empty.
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
    # A connection from an endpoint to itself through the Service needs another source address (hairpin).
    not_own = [f"ip {end} != @mct_import_own accept" for end in ("saddr", "daddr")]
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
            _chain(config, "mct_import_self", *not_own, *map(_hairpin, own), hook="postrouting", priority=98),
        ),
    )


def parse_shares(rule: str, address: Address, protocol: str, port: int) -> tuple[tuple[Socket, float], ...]:
    """Parse a rule of this module: the endpoints of a Service port with their shares, whose sum is 1.

    Returns () for any other rule, or for one of another address, protocol or port.
    """
    match = _RULE.fullmatch(rule)
    if match is None or match.groups()[:3] != (str(address), protocol, str(port)):
        return ()
    shares: dict[Socket, float] = {}
    for first, last, endpoint, number in _ELEMENT.findall(match[4]):
        socket = ip_address(endpoint), int(number)
        shares[socket] = shares.get(socket, 0) + (int(last or first) - int(first) + 1) / SLOTS
    return tuple(shares.items())


def _chain(config: Config, name: str, *rules: str, hook: str = "", priority: int = 0) -> NftChain:
    """Return a base chain, or, without a hook, a chain to jump to."""
    kind = "nat" if hook else ""
    return NftChain(table=config.nft_table, name=name, type=kind, hook=hook, priority=priority, rules=rules)


def _name(address: Address) -> str:
    return f"mct_import_{address}".replace(".", "_")


def _jumps(addresses: list[Address]) -> Iterator[str]:
    for first in range(0, len(addresses), _JUMPS):
        batch = addresses[first : first + _JUMPS]
        yield f"ip daddr vmap {{ {', '.join(f'{address} : jump {_name(address)}' for address in batch)} }}"


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
