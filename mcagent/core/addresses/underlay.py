"""Underlay addresses: the IPv4 or IPv6 addresses between which tunnels and WireGuard sessions run.

Owns which addresses may be used, which of a Node's addresses is selected, and the IPv4 addresses that represent an
IPv6 gateway inside tunnels (Pods and Services are IPv4). Pure; must not know API objects, tunnels or flows.

The derived addresses are functions of the gatewayIP, so every Node of every cluster computes the same ones and
they are not exchanged. They lie in 240.0.0.0/4, which is reserved (RFC 1112) and not routed on the Internet; Linux
treats it as unicast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from mcagent.core.addresses.rules import AddressRefusal, refuse_address
from mcagent.model.net import Address

# No two private addresses (RFC 1918) differ in their first four bits only, so no two IPv4 gateways in private
# networks get one endpoint.
ENDPOINTS = IPv4Network("240.0.0.0/4")
# For IPv6 gateways: two halves of that range, so that an endpoint never equals a source.
_ENDPOINTS6, _SOURCES6 = IPv4Network("240.0.0.0/5"), IPv4Network("248.0.0.0/5")
# For the sources of IPv4 gateways. No endpoint of a private address (RFC 1918, RFC 6598) lies in it.
MAPPED = IPv4Network("254.0.0.0/8")
# Never unicast between Nodes (RFC 4291, RFC 6666); the first one holds "::" and "::1", too.
_SPECIAL6 = (
    (IPv6Network("::/96"), "unspecified, loopback, or IPv4-compatible"),
    (IPv6Network("::ffff:0:0/96"), "IPv4-mapped"),
    (IPv6Network("100::/64"), "discard-only"),
    (IPv6Network("fe80::/10"), "link-local"),
    (IPv6Network("ff00::/8"), "multicast"),
)


def refuse_underlay(address: Address) -> AddressRefusal | None:
    """Check the endpoint address of a tunnel or WireGuard session; None if it is valid."""
    if isinstance(address, IPv4Address):
        return refuse_address(address)
    if address.scope_id:
        return AddressRefusal(reason="NotUnicast", message=f"{address} is not used: it has a zone")
    for special, name in _SPECIAL6:
        if address in special:
            return AddressRefusal(
                reason="NotUnicast", message=f"{address} is not used: it lies in {special} ({name})"
            )
    return None


def usable_tunnel_addresses(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Return the addresses that `refuse_underlay` accepts."""
    return tuple(address for address in addresses if refuse_underlay(address) is None)


def preferred_address(addresses: Iterable[Address], version: int = 0) -> Address | None:
    """Return the first address of an IP version; version 0 prefers IPv4 to IPv6."""
    candidates = tuple(addresses)
    versions = (version,) if version else (4, 6)
    return next((address for number in versions for address in candidates if address.version == number), None)


def tunnel_address(addresses: Iterable[Address]) -> Address | None:
    """Select the tunnel endpoint of a Node: the first usable IPv4 address, else the first usable IPv6 address."""
    return preferred_address(usable_tunnel_addresses(addresses))


def endpoint_of(gateway_ip: Address) -> Address:
    """Return the tunnel endpoint behind the WireGuard device of a gateway that has its own key."""
    if isinstance(gateway_ip, IPv6Address):
        return _hash_into(_ENDPOINTS6, gateway_ip)
    return ENDPOINTS[int(gateway_ip) & int(ENDPOINTS.hostmask)]


def source_of(gateway_ip: Address) -> IPv4Address:
    """Return the SNAT address of a gateway: its gatewayIP, or the mapped IPv4 address of an IPv6 gatewayIP."""
    return _hash_into(_SOURCES6, gateway_ip) if isinstance(gateway_ip, IPv6Address) else gateway_ip


def mapped_addresses(source: Address) -> Iterator[IPv4Address]:
    """Yield the addresses that can represent an IPv4 gateway on Nodes of other clusters, the best one first.

    The first 256 have the Internet checksum (RFC 1071) of `source`: nft can replace one by the other in the
    packet that an ICMP error quotes without computing checksums. Sources with the same first two bytes, and all
    sources in 10.0.0.0/8, have different preferred addresses.
    """
    high, low = divmod(int(source), 1 << 16)
    for step in range(256):
        new_high = int(MAPPED.network_address) >> 16 | (high + step) & 0xFF
        yield IPv4Address(new_high << 16 | (high + low - new_high) % 0xFFFF)
    yield from MAPPED.hosts()


def _hash_into(network: IPv4Network, address: IPv6Address) -> IPv4Address:
    """Map an IPv6 address to an address of the network, never to its last one.

    The hash covers all 128 bits, since the addresses of Nodes often differ only in the prefix or in the last bits.
    """
    number = int.from_bytes(blake2b(address.packed, digest_size=8).digest())
    return network[number % (network.num_addresses - 1)]


def family(address: Address) -> str:
    """Return "IPv4" or "IPv6"."""
    return f"IPv{address.version}"
