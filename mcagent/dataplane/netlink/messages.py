"""The wire format of netlink (netlink(7)): headers, attributes, and how messages follow each other.

Owns the numbers of linux/netlink.h and linux/rtnetlink.h that more than one module needs; `links` and `routes`
have the messages about these. Pure.

rtnetlink is packed here and not by pyroute2, which has classes for all of this: pyroute2 adds 9.6 MiB to the
agent, whose limit is 100 MiB, and 0.1 s of processor time to its start; what a pass asks the kernel beside routes
takes it 4.8 ms (here: 0.3 ms), and a dump of routes about 100 us for each (here: 10 us).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from mcagent.model.net import Address, Network

AF_UNSPEC, AF_INET, AF_INET6 = 0, 2, 10
FAMILIES = (AF_INET, AF_INET6)

NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP_INTR = 0x1, 0x4, 0x10
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
NLM_F_DUMP = 0x300
NLM_F_CAPPED, NLM_F_ACK_TLVS = 0x100, 0x200  # in NLMSG_ERROR
NLMSGERR_ATTR_MSG = 1

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34

NLMSGHDR = struct.Struct("=IHHII")  # length, type, flags, sequence, port
NLATTR = struct.Struct("=HH")  # length, type
U32 = struct.Struct("=I")


def attribute(kind: int, data: bytes) -> bytes:
    """Pack one attribute, padded to four bytes."""
    return NLATTR.pack(4 + len(data), kind) + data + bytes(-len(data) % 4)


def pack(values: Mapping[int, bytes | int | None]) -> bytes:
    """Pack attributes by type, a number as u32; None stands for no attribute."""
    parts = []
    for kind, value in values.items():
        if value is not None:
            parts.append(attribute(kind, value if isinstance(value, bytes) else U32.pack(value)))
    return b"".join(parts)


def attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """Unpack attributes from `offset` to the end; the last one of a type counts, the nested flag is dropped."""
    found: dict[int, bytes] = {}
    end = len(data)
    while offset + 4 <= end:
        length, kind = NLATTR.unpack_from(data, offset)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def family(one: Address | Network) -> int:
    """Return AF_INET or AF_INET6."""
    return AF_INET if one.version == 4 else AF_INET6


def number(data: bytes | None, default: int = 0) -> int:
    """Read a u32 attribute, or the default where there is none."""
    return int(U32.unpack_from(data)[0]) if data else default


def text(data: bytes | None) -> str:
    """Read a string attribute, "" where there is none."""
    return (data or b"").rstrip(b"\0").decode(errors="replace")


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Split what one recv returned into (type, flags, sequence, payload)."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind, flags, sequence, _ = NLMSGHDR.unpack_from(data, offset)
        if length < 16:
            return
        yield kind, flags, sequence, data[offset + 16 : offset + length]
        offset += (length + 3) & ~3
