"""Wakes the loop when the agent's resources in the kernel, or the sources of its facts, change.

Owns two event sockets (rtnetlink, nf_tables) and a thread. It reports only that there was a change; the backends'
`observe` reads the new state. A route to a Pod, or of a routing daemon, costs a check of a few bytes (10 us with
its reception), so a busy routing daemon or kube-proxy on the Node costs little.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
import threading
from collections.abc import Callable, Sequence

from mcagent.dataplane.netlink import connection as nl
from mcagent.dataplane.netlink.connection import (
    NETLINK_NETFILTER,
    NetlinkSocket,
    attributes,
    messages,
    number,
    open_events,
)
from mcagent.dataplane.netlink.links import NDMSG, RawLink, parse_address, parse_link, read_addresses, read_links
from mcagent.dataplane.netlink.routes import (
    RT_TABLE_COMPAT,
    RT_TABLE_MAIN,
    RTMSG,
    RTPROT_BOOT,
    RTPROT_DHCP,
    RTPROT_STATIC,
    leads_to_network,
    parse_route,
    parse_rule,
)
from mcagent.model.errors import BackendError
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

RETRY = 5.0  # seconds between attempts to open the sockets
BURST = 1000  # events read before the loop is woken
# Multicast groups of linux/rtnetlink.h as bits: LINK, NEIGH, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE,
# IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE, IPV4_NETCONF.
RTNETLINK_GROUPS = sum(1 << (group - 1) for group in (1, 3, 5, 7, 8, 9, 11, 19, 24))
NETCONFMSG = 4  # bytes of struct netconfmsg, padded
NETCONFA_IFINDEX = 1  # linux/netconf.h
_ADMINISTRATORS = frozenset(
    {RTPROT_BOOT, RTPROT_STATIC, RTPROT_DHCP}
)  # whose routes wake; not those of routing daemons
NFTABLES_GROUP = 1 << (7 - 1)  # NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h
NFNL_SUBSYS_NFTABLES = 10
NFTA_TABLE = 1  # the table's name in every message of nf_tables (NFTA_RULE_TABLE, NFTA_SET_TABLE, ...)


class NetlinkMonitor:
    """A thread that calls `wake` after every change of the agent's resources, in the namespace that starts it.

    `wake` is called from that thread and has to return at once (setting an Event does). The agent's own changes
    wake too, and the observation that follows finds no difference; except for routes, which are many: changes by
    the socket of port `own_port()` are ignored.
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
        """Arguments are those of the backends; `nft_table` "": do not watch nf_tables."""
        self._wake = wake
        self._tables = frozenset(route_tables)
        self._short_tables = frozenset(table if table < 256 else RT_TABLE_COMPAT for table in route_tables)
        self._protocol = route_protocol
        self._devices = frozenset(devices)
        self._own_port = own_port
        self._nft_name = nft_table.encode() + b"\0" if nft_table else b""
        self._ours: set[int] = set()  # indexes of the agent's devices
        self._mtus: dict[int, int] = {}  # of foreign devices with an address, one of which is the uplink
        self._sockets: list[socket.socket] = []
        self._error = ""  # why they could not be opened last
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._stop_reader, self._stop_writer = socket.socketpair()

    def start(self) -> None:
        """Start watching. The thread opens the sockets again where that fails now."""
        self._sockets = self._try_open()
        self._thread = Supervised(self._run, name="netlink-monitor", until=self._stopping)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the sockets; `wake` is not called afterwards."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._stop_writer.send(b"x")
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._stop_reader.close()
        self._stop_writer.close()

    # --- sockets ----------------------------------------------------------------------------------------

    def _try_open(self) -> list[socket.socket]:
        """Open the event sockets; return none where that fails, which is logged."""
        try:
            sockets = self._open()
        except BackendError as error:
            if str(error) != self._error:
                log.error("%s: changes in the kernel are noticed only when all is read again", error)
            self._error = str(error)
            return []
        self._error = ""
        return sockets

    def _open(self) -> list[socket.socket]:
        """Open the event sockets before reading the devices, so that no change between is missed."""
        sockets: list[socket.socket] = []
        try:
            sockets.append(open_events(socket.NETLINK_ROUTE, RTNETLINK_GROUPS))
            if self._nft_name:
                sockets.append(open_events(NETLINK_NETFILTER, NFTABLES_GROUP))
            self._read_devices()
        except (OSError, BackendError) as error:
            for opened in sockets:
                opened.close()
            raise BackendError("netlink", "watch", "events", str(error)) from None
        return sockets

    def _read_devices(self) -> None:
        with contextlib.closing(NetlinkSocket()) as requests:
            links = read_links(requests)
            addressed = {entry.index for entry in read_addresses(requests) if not entry.address.is_link_local}
        self._ours = {link.index for link in links if link.state.name in self._devices}
        self._mtus = {link.index: link.state.mtu for link in links if link.index in addressed - self._ours}

    # --- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Watch until stopped. After an error Supervised calls this again, which opens new sockets."""
        while not self._stopping.is_set():
            if not self._sockets:
                self._sockets = self._try_open()
                if not self._sockets:
                    self._stopping.wait(RETRY)
                    continue
                self._wake()  # a full observation finds changes whose events were lost
            try:
                self._watch(self._sockets)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
            finally:
                for opened in self._sockets:
                    opened.close()
                self._sockets = []

    def _watch(self, sockets: list[socket.socket]) -> None:
        """Read events until stopped. Raises OSError; ENOBUFS means that events were lost."""
        while True:
            ready = select.select([*sockets, self._stop_reader], [], [])[0]
            if self._stop_reader in ready:
                return
            wake = False
            for reader in ready:
                concerns = self._concerns if reader is sockets[0] else self._concerns_nft
                with contextlib.suppress(BlockingIOError):
                    for _ in range(BURST):  # events that have arrived wake once
                        wake = concerns(reader.recv(1 << 16)) or wake
            if wake:
                self._wake()

    # --- which events concern us ------------------------------------------------------------------------

    def _concerns_nft(self, data: bytes) -> bool:
        if self._nft_name not in data:  # avoids parsing thousands of foreign messages
            return False
        return any(
            kind >> 8 == NFNL_SUBSYS_NFTABLES and attributes(body, 4).get(NFTA_TABLE) == self._nft_name
            for kind, _, _, body in messages(data)
        )

    def _concerns(self, data: bytes) -> bool:
        port = nl.NLMSGHDR.unpack_from(data)[4] if len(data) >= nl.NLMSGHDR.size else 0
        concerned = False
        for kind, _, _, body in messages(data):
            # Read every message: each may change the state that later ones are compared with.
            concerned = self._concerns_message(kind, body, port) or concerned
        return concerned

    def _concerns_message(self, kind: int, body: bytes, port: int) -> bool:
        if kind in {nl.RTM_NEWROUTE, nl.RTM_DELROUTE}:
            return self._concerns_route(body) and not (port and port == self._own_port())
        if kind in {nl.RTM_NEWRULE, nl.RTM_DELRULE}:
            rule = parse_rule(body)
            return rule is not None and rule[0] == self._protocol
        if kind in {nl.RTM_NEWNEIGH, nl.RTM_DELNEIGH}:
            return NDMSG.unpack_from(body)[1] in self._ours
        if kind in {nl.RTM_NEWADDR, nl.RTM_DELADDR}:
            address = parse_address(body)
            if address is None or (address.address.is_link_local and address.index not in self._ours):
                return False
            self._mtus.setdefault(address.index, 0)  # until its next RTM_NEWLINK
            return True
        if kind == nl.RTM_NEWNETCONF:  # forwarding or rp_filter of a device
            return number(attributes(body, NETCONFMSG).get(NETCONFA_IFINDEX)) in self._ours
        if kind in {nl.RTM_NEWLINK, nl.RTM_DELLINK}:
            return self._concerns_link(parse_link(body), gone=kind == nl.RTM_DELLINK)
        return False

    def _concerns_route(self, body: bytes) -> bool:
        _, _, _, _, table, protocol, _, _, _ = RTMSG.unpack_from(body)
        if protocol == self._protocol:
            return True
        if table == RT_TABLE_MAIN and protocol in _ADMINISTRATORS:
            return leads_to_network(body)
        return table in self._short_tables and parse_route(body).table in self._tables

    def _concerns_link(self, link: RawLink, *, gone: bool) -> bool:
        if link.state.name in self._devices or link.index in self._ours:
            if gone or link.state.name not in self._devices:
                self._ours.discard(link.index)
            else:
                self._ours.add(link.index)
            return True
        known_mtu = self._mtus.get(link.index)
        if known_mtu is None:
            return False
        if gone:
            del self._mtus[link.index]
            return True
        self._mtus[link.index] = link.state.mtu
        return known_mtu != link.state.mtu
