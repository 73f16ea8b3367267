"""Changes of links, addresses, neighbours and rules.

Owns how one such resource is made, changed and taken away, and what the kernel's refusals mean. Routes are
not among them: they go in bulk (`netlink`).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from mcagent.dataplane.netlink import changes as rtchange
from mcagent.dataplane.netlink import messages
from mcagent.dataplane.netlink.connection import NetlinkSocket, Refusal, Request
from mcagent.dataplane.netlink.observe import LINK_ALIAS, read_link
from mcagent.model.plan import Op, Step
from mcagent.model.resources import Link, LinkAddress, Neighbour, Rule

# What the kernel says when a thing is already as the step wants it: see rtnetlink(7).
ALREADY_THERE = frozenset({errno.EEXIST})
ALREADY_GONE = frozenset({errno.ESRCH, errno.ENOENT, errno.ENODEV, errno.EADDRNOTAVAIL})
NLM_F_EXCL = 0x200
_SYSCTL = Path("/proc/sys/net/ipv4/conf")


class RefusedError(Exception):
    """One request was refused; becomes the BackendError of its step."""

    def __init__(self, refusal: Refusal, *, retryable: bool = True) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
        self.retryable = retryable


class Writer:
    """Changes of links, addresses, neighbours and rules, for one `apply`."""

    def __init__(self, socket: NetlinkSocket, protocol: int) -> None:
        self._socket = socket
        self._protocol = protocol

    def write(self, step: Step) -> None:
        """Make one step so; raises RefusedError."""
        new, old = step.new, step.old
        if isinstance(new, Link):
            self._configure(new)
        elif isinstance(old, Link) and step.op is Op.DELETE:
            index = device_index(self._socket, old.name, gone=True)
            if index:
                self._send(messages.RTM_NEWLINK, 0, rtchange.link_payload(index, up=False, alias=""), ALREADY_GONE)
        elif isinstance(new, LinkAddress):
            self._address(new)
        elif isinstance(old, LinkAddress):
            self._no_address(old)
        elif isinstance(new, Neighbour):
            index = device_index(self._socket, new.device)
            payload = rtchange.neighbour_payload(index, new.address, new.mac)
            self._send(
                messages.RTM_NEWNEIGH, messages.NLM_F_CREATE | messages.NLM_F_REPLACE, payload, ALREADY_THERE
            )
        elif isinstance(old, Neighbour):
            index = device_index(self._socket, old.device, gone=True)
            if index:
                self._send(messages.RTM_DELNEIGH, 0, rtchange.neighbour_payload(index, old.address), ALREADY_GONE)
        else:
            if isinstance(new, Rule):
                flags = messages.NLM_F_CREATE | NLM_F_EXCL
                self._send(messages.RTM_NEWRULE, flags, self._rule(new), ALREADY_THERE)
            if isinstance(old, Rule) and (new is None or old.intact):
                self._send(messages.RTM_DELRULE, 0, self._rule(old), ALREADY_GONE)

    def _configure(self, link: Link) -> None:
        index = device_index(self._socket, link.name)
        payload = rtchange.link_payload(index, up=link.up, alias=LINK_ALIAS, mtu=link.mtu)
        self._send(messages.RTM_NEWLINK, 0, payload, frozenset())
        switches = {
            messages.IPV4_DEVCONF_RP_FILTER: link.rp_filter,
            messages.IPV4_DEVCONF_FORWARDING: int(link.forwarding),
        }
        request = Request(messages.RTM_SETLINK, 0, messages.link_ipv4_payload(index, switches))
        refusal = self._socket.request([request])[0]
        if refusal is not None:
            write_sysctls(link, refusal)
        found = read_link(self._socket, link.name)
        if found is None:
            raise RefusedError(Refusal(errno.ENODEV))
        for what, wanted, value in (
            ("MTU", link.mtu, found.mtu),
            ("up", link.up, found.up),
            ("rp_filter", link.rp_filter, found.rp_filter),
            ("forwarding", link.forwarding, found.forwarding),
        ):
            if wanted != value:
                raise RefusedError(Refusal(errno.EINVAL, f"{what} stays {value}, {wanted} was asked for"))

    def _address(self, address: LinkAddress) -> None:
        # Link scope keeps the kernel from choosing a link-local address as source elsewhere.
        scope = messages.RT_SCOPE_LINK if address.address.is_link_local else messages.RT_SCOPE_UNIVERSE
        index = device_index(self._socket, address.device)
        payload = rtchange.address_payload(index, address.address, address.prefixlen, scope)
        self._send(messages.RTM_NEWADDR, messages.NLM_F_CREATE | NLM_F_EXCL, payload, ALREADY_THERE)

    def _no_address(self, address: LinkAddress) -> None:
        index = device_index(self._socket, address.device, gone=True)
        if index:
            payload = rtchange.address_payload(index, address.address, address.prefixlen)
            self._send(messages.RTM_DELADDR, 0, payload, ALREADY_GONE)

    def _rule(self, rule: Rule) -> bytes:
        # Of one that is not intact, whatever has its priority, table and protocol goes.
        marked = rule.fwmask and rule.intact
        return rtchange.rule_payload(
            family=rule.family,
            priority=rule.priority,
            table=rule.table,
            protocol=self._protocol,
            fwmark=rule.fwmark if marked else 0,
            fwmask=rule.fwmask if marked else 0,
        )

    def _send(self, kind: int, flags: int, payload: bytes, fine: frozenset[int]) -> None:
        raise_first(self._socket.request([Request(kind, flags, payload)]), fine)


def write_sysctls(link: Link, refusal: Refusal) -> None:
    """Set by /proc/sys what netlink refused to set. Raises RefusedError with both reasons."""
    try:
        (_SYSCTL / link.name / "rp_filter").write_text(str(link.rp_filter))
        (_SYSCTL / link.name / "forwarding").write_text(str(int(link.forwarding)))
    except OSError as error:
        words = f"{error.filename}: {error.strerror}"
        raise RefusedError(Refusal(refusal.errno, f"{refusal.message}; {words}".lstrip("; "))) from None


def device_index(socket: NetlinkSocket, device: str, *, gone: bool = False) -> int:
    """Return a device's index; 0 for one that does not exist when `gone`, else RefusedError."""
    link = read_link(socket, device)
    if link is not None:
        return link.index
    if gone:
        return 0
    raise RefusedError(Refusal(errno.ENODEV, device))


def raise_first(refusals: Sequence[Refusal | None], fine: frozenset[int]) -> None:
    """Raise RefusedError for the first refusal that is not fine."""
    for refusal in refusals:
        if refusal is not None and refusal.errno not in fine:
            raise RefusedError(refusal)
