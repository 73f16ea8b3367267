"""Payloads of requests that change links, addresses, neighbours and policy rules (rtnetlink(7)). Pure.

Few are sent, but on the way to the first packet: pyroute2, which could send them as well, takes a fifth of a
second and 10 MiB to load.
"""

from __future__ import annotations

from mcagent.dataplane.netlink import messages
from mcagent.dataplane.netlink.messages import AF_INET, AF_INET6, AF_UNSPEC, U32, attribute
from mcagent.model.net import Address


def link_payload(index: int, *, up: bool, alias: str, mtu: int | None = None) -> bytes:
    """Pack RTM_NEWLINK that changes a device's state, alias ("" takes it away) and, if given, MTU."""
    flags = messages.IFF_UP if up else 0
    parts = [
        messages.IFINFOMSG.pack(AF_UNSPEC, 0, index, flags, messages.IFF_UP),
        attribute(messages.IFLA_IFALIAS, alias.encode() + b"\0" if alias else b""),
    ]
    if mtu is not None:
        parts.append(attribute(messages.IFLA_MTU, U32.pack(mtu)))
    return b"".join(parts)


def address_payload(index: int, address: Address, prefixlen: int, scope: int = 0) -> bytes:
    """Pack RTM_NEWADDR or RTM_DELADDR."""
    return (
        messages.IFADDRMSG.pack(_family(address), prefixlen, 0, scope, index)
        + attribute(messages.IFA_LOCAL, address.packed)
        + attribute(messages.IFA_ADDRESS, address.packed)
    )


def neighbour_payload(index: int, address: Address, mac: str = "") -> bytes:
    """Pack RTM_NEWNEIGH of a permanent entry or, without a MAC address, RTM_DELNEIGH."""
    state = messages.NUD_PERMANENT if mac else 0
    payload = messages.NDMSG.pack(_family(address), index, state, 0, 0) + attribute(
        messages.NDA_DST, address.packed
    )
    return payload + (attribute(messages.NDA_LLADDR, bytes.fromhex(mac.replace(":", ""))) if mac else b"")


def rule_payload(
    *, family: int, priority: int, table: int, protocol: int, fwmark: int = 0, fwmask: int = 0
) -> bytes:
    """Pack RTM_NEWRULE or RTM_DELRULE of a look-up in a table; `family` is 4 or 6, a mask of 0 means no mark."""
    short = table if table < 256 else messages.RT_TABLE_COMPAT
    parts = [
        messages.FIB_RULE_HDR.pack(
            AF_INET if family == 4 else AF_INET6, 0, 0, 0, short, messages.FR_ACT_TO_TBL, 0
        ),
        attribute(messages.FRA_TABLE, U32.pack(table)),
        attribute(messages.FRA_PRIORITY, U32.pack(priority)),
        attribute(messages.FRA_PROTOCOL, bytes([protocol])),
    ]
    if fwmask:
        parts.append(attribute(messages.FRA_FWMARK, U32.pack(fwmark)))
        parts.append(attribute(messages.FRA_FWMASK, U32.pack(fwmask)))
    return b"".join(parts)


def _family(address: Address) -> int:
    return AF_INET if address.version == 4 else AF_INET6
