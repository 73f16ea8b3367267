"""Wakes the loop when somebody changes, in the kernel, what is ours or what our facts come from.

Owns two event sockets (rtnetlink, nf_tables) and a thread. It tells only that something changed: what it is
now, the backends' `observe` says. Foreign routes are dropped by a filter in the kernel, other foreign events
after a look at a few bytes, so that a Node with a busy routing daemon or kube-proxy costs next to nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence

from mcagent.dataplane.netlink import messages
from mcagent.dataplane.netlink.connection import NETLINK_NETFILTER, SO_RCVBUFFORCE, NetlinkSocket
from mcagent.model.errors import BackendError
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

RECEIVE_BUFFER = 8 << 20  # bytes: bursts of tens of thousands of events
BURST = 1000  # events read before the loop is told
RETRY = 1.0  # seconds between attempts to open sockets again
# Multicast groups of linux/rtnetlink.h as bits: LINK, NEIGH, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE,
# IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE.
RTNETLINK_GROUPS = sum(1 << (group - 1) for group in (1, 3, 5, 7, 8, 9, 11, 19))
NFTABLES_GROUP = 1 << (7 - 1)  # NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h
NFNL_SUBSYS_NFTABLES = 10
NFTA_TABLE = 1  # the table's name in every message of nf_tables (NFTA_RULE_TABLE, NFTA_SET_TABLE, ...)
SO_ATTACH_FILTER = 26  # asm-generic/socket.h

_IN_ADDRESS = frozenset({messages.RTM_NEWADDR, messages.RTM_DELADDR})
_IN_LINK = frozenset({messages.RTM_NEWLINK, messages.RTM_DELLINK})
_IN_NEIGHBOUR = frozenset({messages.RTM_NEWNEIGH, messages.RTM_DELNEIGH})
_IN_ROUTE = frozenset({messages.RTM_NEWROUTE, messages.RTM_DELROUTE})
_IN_RULE = frozenset({messages.RTM_NEWRULE, messages.RTM_DELRULE})


class NetlinkMonitor:
    """A thread that calls `wake` after every change of what is ours, in the namespace that starts it.

    `wake` is called from that thread and has to return at once (setting an Event does). Our own changes wake
    too, and the observation that follows finds nothing to do; except for routes, which are many: those that
    were changed through the socket of port `own_port()` are passed over.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        *,
        route_tables: Sequence[int],
        route_protocol: int,
        devices: Sequence[str],
        nft_table: str = "",
        own_port: Callable[[], int] = lambda: 0,
    ) -> None:
        """Remember what is ours, as the backends have it; `nft_table` "" leaves nf_tables unwatched."""
        self._wake = wake
        self._tables = frozenset(route_tables)
        self._protocol = route_protocol
        self._devices = frozenset(devices)
        self._own_port = own_port
        self._nft_name = nft_table.encode() + b"\0" if nft_table else b""
        self._ours: set[int] = set()  # indexes of our devices
        self._mtus: dict[int, int] = {}  # of foreign devices that have an address: one of them is the uplink
        self._thread: threading.Thread | None = None
        self._stop_reader, self._stop_writer = socket.socketpair()

    def start(self) -> None:
        """Start watching. Raises BackendError when the kernel gives no sockets."""
        sockets = self._open()
        self._thread = Supervised(self._run, args=(sockets,), name="netlink-monitor")
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close everything; `wake` is not called any more afterwards."""
        with contextlib.suppress(OSError):
            self._stop_writer.send(b"x")
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._stop_reader.close()
        self._stop_writer.close()

    # --- sockets ----------------------------------------------------------------------------------------

    def _open(self) -> list[socket.socket]:
        """Open the event sockets, then read what events are compared with: nothing falls in between."""
        sockets: list[socket.socket] = []
        try:
            program = route_filter(self._protocol, self._tables)
            sockets.append(listen_events(socket.NETLINK_ROUTE, RTNETLINK_GROUPS, program))
            if self._nft_name:
                sockets.append(listen_events(NETLINK_NETFILTER, NFTABLES_GROUP))
            self._read_devices()
        except (OSError, BackendError) as error:
            for one in sockets:
                one.close()
            raise BackendError("netlink", "watch", "events", str(error)) from None
        return sockets

    def _read_devices(self) -> None:
        requests = NetlinkSocket()
        try:
            links = [
                messages.parse_link(body)
                for body in requests.dump(messages.RTM_GETLINK, messages.link_get_payload())
            ]
            addressed = {
                address.index
                for family in messages.FAMILIES
                for body in requests.dump(messages.RTM_GETADDR, messages.address_dump_payload(family))
                if (address := messages.parse_address(body)) is not None and not address.address.is_link_local
            }
        finally:
            requests.close()
        self._ours = {link.index for link in links if link.name in self._devices}
        self._mtus = {link.index: link.mtu for link in links if link.index in addressed - self._ours}

    # --- the thread -------------------------------------------------------------------------------------

    def _run(self, sockets: list[socket.socket]) -> None:
        while True:
            try:
                stopped = self._watch(sockets)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    log.warning("netlink events: %s; opening the sockets again", error)
                stopped = False
            for one in sockets:
                one.close()
            if stopped:
                return
            sockets = []
            while not sockets:
                try:
                    sockets = self._open()
                except BackendError as error:
                    log.warning("%s; next attempt in %g s", error, RETRY)
                    if select.select([self._stop_reader], [], [], RETRY)[0]:
                        return
            self._wake()  # whatever was lost, a full observation finds

    def _watch(self, sockets: list[socket.socket]) -> bool:
        """Read events until told to stop (True). OSError ENOBUFS means that events were lost."""
        poll = select.poll()
        readers = {one.fileno(): one for one in sockets}
        for descriptor in (*readers, self._stop_reader.fileno()):
            poll.register(descriptor, select.POLLIN)
        while True:
            wake = False
            for descriptor, _ in poll.poll():
                if descriptor == self._stop_reader.fileno():
                    return True
                reader = readers[descriptor]
                concerns = self._concerns if reader is sockets[0] else self._concerns_nft
                with contextlib.suppress(BlockingIOError):
                    for _ in range(BURST):  # what has arrived already wakes once
                        wake = concerns(reader.recv(1 << 16)) or wake
            if wake:
                self._wake()

    def _concerns_nft(self, data: bytes) -> bool:
        if self._nft_name not in data:  # spares a look into each of thousands of foreign messages
            return False
        return any(
            kind >> 8 == NFNL_SUBSYS_NFTABLES and messages.attributes(body, 4).get(NFTA_TABLE) == self._nft_name
            for kind, _, _, body in messages.messages(data)
        )

    def _concerns(self, data: bytes) -> bool:
        if len(data) >= messages.NLMSGHDR.size:  # the kernel sends events one by one
            _, kind, _, _, port = messages.NLMSGHDR.unpack_from(data)
            if kind in _IN_ROUTE and port and port == self._own_port():
                return False
        found = False
        for kind, _, _, body in messages.messages(data):
            # No short cut: every message may change what later ones are compared with.
            found = self._concerns_one(kind, body) or found
        return found

    def _concerns_one(self, kind: int, body: bytes) -> bool:
        if kind in _IN_ROUTE:
            route = messages.parse_route(body)
            return route is not None and (route.protocol == self._protocol or route.table in self._tables)
        if kind in _IN_RULE:
            rule = messages.parse_rule(body)
            return rule is not None and rule.protocol == self._protocol
        if kind in _IN_NEIGHBOUR:
            return messages.NDMSG.unpack_from(body)[1] in self._ours
        if kind in _IN_ADDRESS:
            address = messages.parse_address(body)
            if address is None or (address.address.is_link_local and address.index not in self._ours):
                return False
            self._mtus.setdefault(address.index, 0)  # until its next RTM_NEWLINK
            return True
        if kind in _IN_LINK:
            return self._concerns_link(messages.parse_link(body), gone=kind == messages.RTM_DELLINK)
        return False

    def _concerns_link(self, link: messages.RawLink, *, gone: bool) -> bool:
        if link.name in self._devices or link.index in self._ours:
            if gone or link.name not in self._devices:
                self._ours.discard(link.index)
            else:
                self._ours.add(link.index)
            return True
        if gone:
            return self._mtus.pop(link.index, None) is not None
        before = self._mtus.get(link.index)
        if before is None or before == link.mtu:
            return False
        self._mtus[link.index] = link.mtu
        return True


def listen_events(protocol: int, groups: int, program: bytes = b"") -> socket.socket:
    """Open a socket for events of a netlink protocol, by bits of groups and a BPF program. Raises OSError."""
    one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol)
    try:
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
        if program:
            buffer = ctypes.create_string_buffer(program, len(program))
            # struct sock_fprog: number of instructions, pointer to them
            fprog = struct.pack("HL", len(program) // 8, ctypes.addressof(buffer))
            with contextlib.suppress(OSError):  # without it every route is looked at in Python
                one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, fprog)
        one.bind((0, groups))
    except OSError:
        one.close()
        raise
    return one


def route_filter(protocol: int, tables: frozenset[int]) -> bytes:
    """Return a classic BPF program (linux/filter.h) that drops route events which cannot be ours.

    Passed are all other events, and routes of our protocol or in a table whose number's byte in struct rtmsg
    is that of one of ours (252 for all from 256 on: those are told apart afterwards).
    """
    load_half, load_byte, jump_equal, give = 0x28, 0x30, 0x15, 0x06
    low = sorted({table if table < 256 else messages.RT_TABLE_COMPAT for table in tables})
    last = 7 + len(low)  # the instruction that passes the event
    code = [
        (load_half, 0, 0, 4),  # nlmsg_type, which BPF reads in network order
        (jump_equal, 1, 0, socket.htons(messages.RTM_NEWROUTE)),
        (jump_equal, 0, last - 3, socket.htons(messages.RTM_DELROUTE)),
        (load_byte, 0, 0, messages.NLMSGHDR.size + 5),  # rtm_protocol
        (jump_equal, last - 5, 0, protocol),
        (load_byte, 0, 0, messages.NLMSGHDR.size + 4),  # rtm_table
        *((jump_equal, last - 7 - place, 0, table) for place, table in enumerate(low)),
        (give, 0, 0, 0),
        (give, 0, 0, 0xFFFFFFFF),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)
