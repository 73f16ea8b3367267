"""The packet that the simulator walks through a pipeline: a value, with no bytes behind it.

Owns which parts of a packet a flow can see. Must not know flows, switches or topologies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from flows.fields import (
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    IP_ICMP,
    IP_ICMPV6,
    IP_SCTP,
    IP_TCP,
    IP_UDP,
    TCP_BITS,
    Address,
)

FIN, SYN, RST, PSH, ACK = (TCP_BITS[name] for name in ("fin", "syn", "rst", "psh", "ack"))

ECHO_REPLY, UNREACHABLE, ECHO_REQUEST, TIME_EXCEEDED = 0, 3, 8, 11
FRAGMENTATION_NEEDED = 4  # code of UNREACHABLE
ECHO6_REQUEST, ECHO6_REPLY = 128, 129
PROTOCOL_NAMES = {IP_ICMP: "icmp", IP_TCP: "tcp", IP_UDP: "udp", IP_SCTP: "sctp", IP_ICMPV6: "icmp6"}


class IpFragment(IntEnum):
    """Where in its datagram a packet lies; the values are those of `ip_frag` (ovs-fields(7))."""

    NO = 0
    FIRST = 1
    LATER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """One packet as it is at some point of its way.

    A packet that is not IP has an `eth_type` of its own and no addresses. `src_port` and `dst_port` are the
    transport's ports; an ICMP echo has its identifier in `src_port`. A later fragment keeps its datagram's
    ports here, because connection tracking reassembles; flows do not see them. `quoted` is the packet
    that an ICMP error complains about, as its sender saw it.
    """

    in_port: int
    src: Address | None = None
    dst: Address | None = None
    proto: int = IP_TCP
    src_port: int = 0
    dst_port: int = 0
    icmp_type: int = 0
    icmp_code: int = 0
    tcp_flags: int = SYN
    ttl: int = 64
    tos: int = 0
    fragment: IpFragment = IpFragment.NO
    eth_src: str = "02:00:00:00:00:01"
    eth_dst: str = "02:00:00:00:00:02"
    eth_type: int = 0
    tun_id: int = 0
    metadata: int = 0
    quoted: Packet | None = None

    def __post_init__(self) -> None:
        """Derive `eth_type` from the addresses; ValueError when they do not go together."""
        if (self.src is None) != (self.dst is None) or (
            self.src is not None and self.dst is not None and self.src.version != self.dst.version
        ):
            raise ValueError("a packet has two addresses of one family, or none")
        if self.eth_type == 0:
            kinds = {None: ETH_ARP, 4: ETH_IPV4, 6: ETH_IPV6}
            object.__setattr__(self, "eth_type", kinds[self.src.version if self.src else None])

    def reply(self, **changes: object) -> Packet:
        """Return the packet that answers this one: addresses and ports the other way round."""
        if self.proto in (IP_ICMP, IP_ICMPV6):
            kind = ECHO_REPLY if self.proto == IP_ICMP else ECHO6_REPLY
            answer = replace(self, src=self.dst, dst=self.src, icmp_type=kind)
        else:
            flags = SYN | ACK if self.tcp_flags == SYN else ACK
            answer = replace(
                self, src=self.dst, dst=self.src, src_port=self.dst_port, dst_port=self.src_port, tcp_flags=flags
            )
        return replace(answer, ttl=64, quoted=None, **changes)  # type: ignore[arg-type]  # Packet's own names

    def __str__(self) -> str:
        if self.src is None:
            return f"eth_type=0x{self.eth_type:04x} in_port={self.in_port} {self.eth_src}->{self.eth_dst}"
        ports = f"{self.src}:{self.src_port}->{self.dst}:{self.dst_port}"
        return f"{PROTOCOL_NAMES.get(self.proto, self.proto)} {ports} in_port={self.in_port} dl_dst={self.eth_dst}"
