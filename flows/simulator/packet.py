"""The packet of the simulator: a value, without bytes.

Owns the properties of a packet that flows can match. Must not know flows, switches or topologies.
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
    """The position of a packet in its datagram, with the values of `ip_frag` (ovs-fields(7))."""

    NO = 0
    FIRST = 1
    LATER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """The state of a packet at one point of its path.

    A packet that is not IP has an `eth_type` and no addresses. `src_port` and `dst_port`: the transport's ports;
    an ICMP echo has its identifier in `src_port`. A later fragment has the ports of its datagram, since connection
    tracking reassembles; flows do not see them. `quoted`: the packet in an ICMP error, as the error's sender
    received it. `size`: bytes of the IP packet; 0: it fits everywhere.
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
    size: int = 0

    def __post_init__(self) -> None:
        """Derive `eth_type` from the addresses; ValueError if these are of two families."""
        if (self.src is None) != (self.dst is None) or (
            self.src is not None and self.dst is not None and self.src.version != self.dst.version
        ):
            raise ValueError("a packet has two addresses of one family, or none")
        if self.eth_type == 0:
            kinds = {None: ETH_ARP, 4: ETH_IPV4, 6: ETH_IPV6}
            object.__setattr__(self, "eth_type", kinds[self.src.version if self.src else None])

    def reply(self, **changes: object) -> Packet:
        """Return the reply to this packet, with addresses and ports swapped."""
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
