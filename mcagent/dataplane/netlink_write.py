"""Changes of links, addresses, neighbours and rules, through pyroute2.

Owns how one such resource is made, changed and taken away, and what the kernel's refusals mean. Routes are
not among them: they go in bulk (`netlink`).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from mcagent.dataplane import rtmsg
from mcagent.dataplane.netlink_observe import LINK_ALIAS, read_link
from mcagent.dataplane.rtsocket import Refusal, Request, RtSocket
from mcagent.model.plan import Op, Step
from mcagent.model.resources import Link, LinkAddress, Neighbour, Rule

# What the kernel says when a thing is already as the step wants it: see rtnetlink(7).
ALREADY_THERE = frozenset({errno.EEXIST})
ALREADY_GONE = frozenset({errno.ESRCH, errno.ENOENT, errno.ENODEV, errno.EADDRNOTAVAIL})
_SYSCTL = Path("/proc/sys/net/ipv4/conf")


class RefusedError(Exception):
    """One request was refused; becomes the BackendError of its step."""

    def __init__(self, refusal: Refusal, *, retryable: bool = True) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
        self.retryable = retryable


class Writer:
    """Changes of links, addresses, neighbours and rules through pyroute2, opened for one `apply`."""

    def __init__(self, socket: RtSocket, protocol: int) -> None:
        self._socket = socket
        self._protocol = protocol

    def write(self, step: Step) -> None:
        """Make one step so; raises RefusedError."""
        new, old = step.new, step.old
        if isinstance(new, Link):
            self._configure(new)
        elif isinstance(old, Link) and step.op is Op.DELETE:
            self._call("link", "set", ALREADY_GONE, ifname=old.name, state="down", ifalias="")
        elif isinstance(new, LinkAddress):
            # Link scope keeps the kernel from choosing a link-local address as source elsewhere.
            scope = rtmsg.RT_SCOPE_LINK if new.address.is_link_local else rtmsg.RT_SCOPE_UNIVERSE
            self._address("add", new, ALREADY_THERE, scope=scope)
        elif isinstance(old, LinkAddress):
            self._address("del", old, ALREADY_GONE)
        elif isinstance(new, Neighbour):
            self._neighbour("replace", new, ALREADY_THERE, lladdr=new.mac, state="permanent")
        elif isinstance(old, Neighbour):
            self._neighbour("del", old, ALREADY_GONE)
        else:
            if isinstance(new, Rule):
                self._rule("add", new, ALREADY_THERE)
            if isinstance(old, Rule) and (new is None or old.intact):
                self._rule("del", old, ALREADY_GONE)

    def _configure(self, link: Link) -> None:
        index = device_index(self._socket, link.name)
        state = "up" if link.up else "down"
        self._call("link", "set", frozenset(), index=index, mtu=link.mtu, ifalias=LINK_ALIAS, state=state)
        switches = {
            rtmsg.IPV4_DEVCONF_RP_FILTER: link.rp_filter,
            rtmsg.IPV4_DEVCONF_FORWARDING: int(link.forwarding),
        }
        request = Request(rtmsg.RTM_SETLINK, 0, rtmsg.link_ipv4_payload(index, switches))
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

    def _address(self, command: str, address: LinkAddress, fine: frozenset[int], **more: object) -> None:
        index = device_index(self._socket, address.device, gone=command == "del")
        if index:
            self._call(
                "addr",
                command,
                fine,
                index=index,
                address=str(address.address),
                prefixlen=address.prefixlen,
                **more,
            )

    def _neighbour(self, command: str, entry: Neighbour, fine: frozenset[int], **more: object) -> None:
        index = device_index(self._socket, entry.device, gone=command == "del")
        if index:
            self._call("neigh", command, fine, ifindex=index, dst=str(entry.address), **more)

    def _rule(self, command: str, rule: Rule, fine: frozenset[int]) -> None:
        # Of one that is not intact, whatever has its priority, table and protocol goes.
        marked = rule.fwmask and rule.intact
        mark = {"fwmark": rule.fwmark, "fwmask": rule.fwmask} if marked else {}
        self._call(
            "rule",
            command,
            fine,
            priority=rule.priority,
            table=rule.table,
            family=rtmsg.AF_INET if rule.family == 4 else rtmsg.AF_INET6,
            FRA_PROTOCOL=self._protocol,
            **mark,
        )

    def _call(self, method: str, command: str, fine: frozenset[int], **arguments: object) -> None:
        from pyroute2 import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            # A socket for each call: pyroute2's are bound to one thread, and one that failed stays so.
            with IPRoute() as route:
                getattr(route, method)(command, **arguments)
        except NetlinkError as error:  # not an OSError
            if error.code not in fine:
                raise RefusedError(Refusal(error.code)) from None
        except OSError as error:
            if error.errno not in fine:
                raise RefusedError(Refusal(error.errno or errno.EIO)) from None


def write_sysctls(link: Link, refusal: Refusal) -> None:
    """Set by /proc/sys what netlink refused to set. Raises RefusedError with both reasons."""
    try:
        (_SYSCTL / link.name / "rp_filter").write_text(str(link.rp_filter))
        (_SYSCTL / link.name / "forwarding").write_text(str(int(link.forwarding)))
    except OSError as error:
        words = f"{error.filename}: {error.strerror}"
        raise RefusedError(Refusal(refusal.errno, f"{refusal.message}; {words}".lstrip("; "))) from None


def device_index(socket: RtSocket, device: str, *, gone: bool = False) -> int:
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
