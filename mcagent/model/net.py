"""Addresses and networks of either family, and the questions the rest of the code asks about them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPrefix:
    """A Pod CIDR, `real` in its own cluster, and `virtual` in others. Both have the same length."""

    real: Network
    virtual: Network


def parse_address(text: str) -> Address:
    """Return the address; ValueError says what is wrong with the text."""
    try:
        return ip_address(text)
    except ValueError:
        raise ValueError(f'not an IP address: "{text}"') from None


def parse_network(text: str) -> tuple[Network, bool]:
    """Return the network and whether host bits were set (they are masked away); ValueError if it is none.

    A bare address is no CIDR: the API's fields always carry a prefix length.
    """
    head, slash, prefix = text.partition("/")
    # ip_network() would also take a bare address, a netmask and a zone
    if not slash or not (prefix.isascii() and prefix.isdecimal()) or "%" in head:
        raise ValueError(f'not a CIDR: "{text}"')
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f'not a CIDR: "{text}"') from None
    return network, ip_address(head) != network.network_address


def address_or_none(text: str) -> Address | None:
    """Return the address in a text; None if it is none."""
    try:
        return parse_address(text)
    except ValueError:
        return None


def network_or_none(text: str) -> Network | None:
    """Return the network of a CIDR, without host bits; None if the text is none."""
    try:
        return parse_network(text)[0]
    except ValueError:
        return None


def socket_text(address: Address, port: int) -> str:
    """Return address and port as one text, an IPv6 address in brackets (RFC 3986 section 3.2.2)."""
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def internet_checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    padded = data + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def host_network(address: Address) -> Network:
    """Return the /32 or /128 that holds just this address."""
    # from integers: the general constructor makes text of the address and parses it
    if isinstance(address, IPv4Address):
        return IPv4Network((int(address), 32))
    return IPv6Network((int(address), 128))


class NetworkSet:
    """A set of IPv4 networks that says quickly of many addresses whether they are in one; others are left out."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._by_mask: dict[int, set[int]] = {}
        for network in networks:
            if isinstance(network, IPv4Network):
                self._by_mask.setdefault(int(network.netmask), set()).add(int(network.network_address))

    def __contains__(self, address: int) -> bool:
        """Tell whether the IPv4 address of that number is in one of them."""
        return any(address & mask in networks for mask, networks in self._by_mask.items())


def network_key(network: Network) -> tuple[int, int, int]:
    """Return a sort key: family, first address, prefix length. Networks of both families sort together."""
    return (network.version, int(network.network_address), network.prefixlen)


def contains(outer: Network, inner: Network | Address) -> bool:
    """Tell whether `inner` lies wholly inside `outer`; never true across families."""
    if outer.version != inner.version:
        return False
    if isinstance(inner, (IPv4Address, IPv6Address)):
        return inner in outer
    return inner.subnet_of(outer)  # type: ignore[arg-type]


def overlaps(a: Network, b: Network) -> bool:
    """Tell whether two networks share an address; never true across families."""
    return a.version == b.version and a.overlaps(b)


def cluster_fingerprint(cluster_id: str) -> int:
    """Return the MAC address that stands for a cluster where it answers probes: 46 bits of the ID's SHA-256.

    It is unicast and locally administered (IEEE 802, 8.4).
    """
    digest = int.from_bytes(sha256(cluster_id.encode("utf-8", "surrogatepass")).digest()[:6])
    return digest & ~(0b11 << 40) | 0b10 << 40
