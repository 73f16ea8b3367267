"""The conversion between a packet and the fields that flows match.

Owns the mapping from `Packet` to `MatchField`; must not know tables, actions or topologies.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from flows.fields import (
    ETH_DST,
    ETH_SRC,
    ETH_TYPE,
    ICMP_CODE,
    ICMP_TYPE,
    ICMPV6_CODE,
    ICMPV6_TYPE,
    IN_PORT,
    IP_FRAG,
    IP_ICMP,
    IP_ICMPV6,
    IP_PROTO,
    IP_TCP,
    IP_TOS,
    IP_TTL,
    IPV4_DST,
    IPV4_SRC,
    IPV6_DST,
    IPV6_SRC,
    METADATA,
    PORTS_DST,
    PORTS_SRC,
    TCP_FLAGS,
    TUN_ID,
    MatchField,
)
from flows.simulator.packet import IpFragment, Packet
from flows.text import mac_text

State = dict[MatchField, int]  # absent fields count as 0, as in `Match.matches`


@lru_cache(maxsize=256)
def mac_number(text: str) -> int:
    """Parse a MAC address to its 48-bit number; ValueError if it is invalid."""
    parts = text.split(":")
    if len(parts) != 6 or any(len(part) != 2 for part in parts):
        raise ValueError(f'not a MAC address: "{text}"')
    return int("".join(parts), 16)


def state_of(packet: Packet) -> State:
    """Return the fields of a packet that has just arrived."""
    state: State = {
        IN_PORT: packet.in_port,
        ETH_SRC: mac_number(packet.eth_src),
        ETH_DST: mac_number(packet.eth_dst),
        ETH_TYPE: packet.eth_type,
        TUN_ID: packet.tun_id,
        METADATA: packet.metadata,
    }
    if packet.src is None or packet.dst is None:
        return state
    four = packet.src.version == 4
    state[IPV4_SRC if four else IPV6_SRC] = int(packet.src)
    state[IPV4_DST if four else IPV6_DST] = int(packet.dst)
    state[IP_PROTO] = packet.proto
    state[IP_TTL] = packet.ttl
    state[IP_TOS] = packet.tos
    state[IP_FRAG] = packet.fragment
    if packet.fragment is IpFragment.LATER:
        return state
    if packet.proto in PORTS_SRC:
        state[PORTS_SRC[packet.proto]] = packet.src_port
        state[PORTS_DST[packet.proto]] = packet.dst_port
        if packet.proto == IP_TCP:
            state[TCP_FLAGS] = packet.tcp_flags
    elif packet.proto in (IP_ICMP, IP_ICMPV6):
        four = packet.proto == IP_ICMP
        state[ICMP_TYPE if four else ICMPV6_TYPE] = packet.icmp_type
        state[ICMP_CODE if four else ICMPV6_CODE] = packet.icmp_code
    return state


def packet_of(state: State, carried: Packet) -> Packet:
    """Return `carried` with the values of the fields in `state`."""
    changes: dict[str, object] = {
        "in_port": state[IN_PORT],
        "eth_src": mac_text(state[ETH_SRC]),
        "eth_dst": mac_text(state[ETH_DST]),
        "tun_id": state[TUN_ID],
        "metadata": state[METADATA],
    }
    if IPV4_SRC in state:
        changes |= {"src": IPv4Address(state[IPV4_SRC]), "dst": IPv4Address(state[IPV4_DST])}
    elif IPV6_SRC in state:
        changes |= {"src": IPv6Address(state[IPV6_SRC]), "dst": IPv6Address(state[IPV6_DST])}
    if IP_TTL in state:
        changes |= {"ttl": state[IP_TTL], "tos": state[IP_TOS]}
    if carried.proto in PORTS_SRC and PORTS_SRC[carried.proto] in state:
        changes["src_port"] = state[PORTS_SRC[carried.proto]]
        changes["dst_port"] = state[PORTS_DST[carried.proto]]
    return replace(carried, **changes)  # type: ignore[arg-type]  # the names are Packet's own


def hashed(state: State, field: MatchField, mask: int) -> bytes | None:
    """Return a field's masked bytes in network order for the bucket hash; None if the packet lacks the field."""
    if field not in state:
        return None
    return (state[field] & mask).to_bytes((field.width + 7) // 8, "big")
