"""The addresses that tunnels and WireGuard use between Nodes, IPv4 or IPv6, and what follows from them.

Owns which of them may be used, which of a Node's several is taken, and the IPv4 addresses that stand for an IPv6
gateway in what tunnels carry (Pods and Services are IPv4). Pure; knows nothing of objects, tunnels or flows.

Nobody has to tell anybody the addresses that are derived here: every Node of every cluster comes to the same ones.
They lie in 240.0.0.0/4, which is reserved and routed by nobody (RFC 1112); Linux takes it for unicast.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from mcagent.core.addresses.rules import Refusal, refuse_address
from mcagent.model.net import Address

# No two private addresses (RFC 1918) differ in their first four bits only, so no two IPv4 gateways in private
# networks get one endpoint.
ENDPOINTS = IPv4Network("240.0.0.0/4")
# Of IPv6 gateways: halves of the same, so that an endpoint and a source are never one address.
_ENDPOINTS6, _SOURCES6 = IPv4Network("240.0.0.0/5"), IPv4Network("248.0.0.0/5")
# Never unicast between Nodes (RFC 4291, RFC 6666); the first one holds "::" and "::1", too.
_SPECIAL6 = (
    (IPv6Network("::/96"), "unspecified, loopback, or IPv4-compatible"),
    (IPv6Network("::ffff:0:0/96"), "IPv4-mapped"),
    (IPv6Network("100::/64"), "discard-only"),
    (IPv6Network("fe80::/10"), "link-local"),
    (IPv6Network("ff00::/8"), "multicast"),
)


def refuse_underlay(address: Address) -> Refusal | None:
    """Return why no tunnel or WireGuard session can end at an address, None when one can."""
    if isinstance(address, IPv4Address):
        return refuse_address(address)
    if address.scope_id:
        return Refusal(reason="NotUnicast", message=f"{address} is not used: it has a zone")
    for special, name in _SPECIAL6:
        if address in special:
            return Refusal(reason="NotUnicast", message=f"{address} is not used: it lies in {special} ({name})")
    return None


def usable_ends(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Return those of the addresses at which a tunnel can end."""
    return tuple(address for address in addresses if refuse_underlay(address) is None)


def preferred(ends: Iterable[Address], version: int = 0) -> Address | None:
    """Return the first of these addresses of one IP version; by default IPv4 where there is one."""
    ends = tuple(ends)
    versions = (version,) if version else (4, 6)
    return next((address for wanted in versions for address in ends if address.version == wanted), None)


def first_usable(addresses: Iterable[Address]) -> Address | None:
    """Return the address at which a Node's tunnels end: the first that can be used, IPv4 where there is one."""
    return preferred(usable_ends(addresses))


def endpoint_of(gateway_ip: Address) -> Address:
    """Return the tunnel endpoint behind the WireGuard device of a gateway that has a key of its own."""
    if isinstance(gateway_ip, IPv6Address):
        return _drawn(gateway_ip, _ENDPOINTS6)
    return ENDPOINTS[int(gateway_ip) & int(ENDPOINTS.hostmask)]


def source_of(gateway_ip: Address) -> IPv4Address:
    """Return the source of connections that a gateway translates: its gatewayIP, or the one mapped to that."""
    return _drawn(gateway_ip, _SOURCES6) if isinstance(gateway_ip, IPv6Address) else gateway_ip


def _drawn(address: IPv6Address, network: IPv4Network) -> IPv4Address:
    """Return the address of the network that follows from an IPv6 address: by a hash, never its last one.

    All 128 bits count: IPv6 addresses of Nodes often differ in their prefix only, or in their last bits only.
    """
    number = int.from_bytes(blake2b(address.packed, digest_size=8).digest())
    return network[number % (network.num_addresses - 1)]


def family(address: Address) -> str:
    """Return the name of an address' family, for people."""
    return f"IPv{address.version}"
