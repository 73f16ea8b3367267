"""Wakes the loop when somebody else changes our WireGuard device or the key file, or wireguard-go dies.

Owns a thread with an event socket (links and addresses), a descriptor for each wireguard-go process, and looks
from time to time at what no event tells of: keys and peers. What is wrong, the backend's `observe` says.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Collection

from mcagent.dataplane.netlink import messages
from mcagent.dataplane.netlink.connection import open_events
from mcagent.dataplane.netlink.links import parse_address, parse_link
from mcagent.dataplane.wireguard.backend import WireGuardBackend, remove_former_table
from mcagent.dataplane.wireguard.driver import wireguard_error
from mcagent.dataplane.wireguard.link import read_link
from mcagent.model.errors import BackendError
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

RETRY = 1.0  # seconds between attempts to open the events again
TICK = 0.25  # seconds between looks at the key file
# Seconds between looks while a peer may begin to use the key it announced: what it sends in between is lost.
AWAITING = 0.05
SHARE = 4  # times as long as such a look took is waited at least: with a thousand peers it takes 0.1 s
PERIOD = 5.0  # seconds between looks at the peers: of a thousand, one takes 20 to 100 ms
GROUPS = sum(1 << (group - 1) for group in (1, 5, 9))  # LINK, IPV4_IFADDR, IPV6_IFADDR of linux/rtnetlink.h
_IN_LINK = frozenset({messages.RTM_NEWLINK, messages.RTM_DELLINK})
_IN_ADDRESS = frozenset({messages.RTM_NEWADDR, messages.RTM_DELADDR})


class WireGuardWatch:
    """A thread that calls `wake` when the devices are not what the backend last made or saw of them.

    It lives in the network namespace of who starts it. `wake` has to return at once. Our own changes do not wake.
    """

    def __init__(
        self,
        backend: WireGuardBackend,
        wake: Callable[[], None],
        *,
        devices: Collection[str],
        period: float = PERIOD,
    ) -> None:
        """Remember whom to ask and to tell; nothing is opened yet."""
        self._backend = backend
        self._wake = wake
        self._devices = frozenset(devices)
        self._period = period
        self._thread: threading.Thread | None = None
        self._public_keys: tuple[str, str] | None = None  # the one in use, and the next
        self._look_at = 0.0  # monotonic seconds
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._indexes: set[int] = set()  # of our devices, so that their own addresses are told from the underlay's

    def start(self) -> None:
        """Start watching. Raises BackendError when the kernel gives no socket."""
        events = self._open()
        remove_former_table()
        self._thread = Supervised(self._run, args=(events,), name="wireguard-watch")
        self._thread.start()

    def stop(self) -> None:
        """End the thread; `wake` is not called any more afterwards."""
        with contextlib.suppress(OSError):
            self._stop_writer.send(b"x")
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._stop_reader.close()
        self._stop_writer.close()

    def _open(self) -> socket.socket:
        """Open the socket, then read which devices there are: nothing falls in between. Raises BackendError."""
        try:
            events = open_events(socket.NETLINK_ROUTE, GROUPS)
        except OSError as error:
            raise wireguard_error("watch", "events of links", error.strerror or str(error)) from None
        try:
            links = [read_link(name) for name in self._devices]
        except BackendError:
            events.close()
            raise
        self._indexes = {link.index for link in links if link is not None}
        return events

    def _run(self, events: socket.socket | None) -> None:
        processes: dict[int, int] = {}  # descriptor by number
        while True:
            self._follow(processes)
            readers = {self._stop_reader.fileno(), *processes.values()}
            if events is not None:
                readers.add(events.fileno())
            ready = _wait(readers, self._hand_over() if events is not None else RETRY)
            if self._stop_reader.fileno() in ready:
                break
            look = any(descriptor in ready for descriptor in processes.values())
            look = time.monotonic() >= self._look_at or look
            for pid in [pid for pid, descriptor in processes.items() if descriptor in ready]:
                os.close(processes.pop(pid))
            if events is None:
                events = self._open_again()
                look = True
            elif events.fileno() in ready:
                try:
                    look = self._concerned(events) or look
                except OSError as error:  # ENOBUFS: events were lost
                    log.debug("events of links: %s", error)
                    events.close()
                    events = None
                    look = True
            if self._other_keys() or (look and self._different()):
                self._wake()
        for descriptor in processes.values():
            os.close(descriptor)
        if events is not None:
            events.close()

    def _open_again(self) -> socket.socket | None:
        try:
            return self._open()
        except BackendError as error:
            log.warning("%s; next attempt in %g s", error, RETRY)
            return None

    def _follow(self, processes: dict[int, int]) -> None:
        """Have a descriptor for each process that lives: it tells of the end at once."""
        for pid in set(self._backend.own.processes()) - processes.keys():
            with contextlib.suppress(OSError):  # gone already: the next look sees that
                processes[pid] = os.pidfd_open(pid)

    def _concerned(self, events: socket.socket) -> bool:
        """Read what has arrived; tell whether it is about our devices. Another address of the Node: bind again."""
        ours = underlay = False
        with contextlib.suppress(BlockingIOError):
            while True:
                for _, kind, body in ((f, k, b) for k, f, _, b in messages.messages(events.recv(1 << 16))):
                    if kind in _IN_LINK:
                        link = parse_link(body)
                        if link.name in self._devices:
                            self._indexes.add(link.index)
                        ours = ours or link.index in self._indexes
                    elif kind in _IN_ADDRESS:
                        address = parse_address(body)
                        if address is not None and address.index in self._indexes:
                            ours = True
                        elif address is not None and not address.address.is_link_local:
                            underlay = True
        if underlay:
            try:
                self._backend.own.bind_again()
            except BackendError as error:
                log.warning("%s", error)
        return ours

    def _other_keys(self) -> bool:
        """Tell whether the key to use, or the one to announce, is another one than at the last look."""
        before = self._public_keys
        try:
            keys = self._backend.keys()
            self._public_keys = (keys.current.public, keys.next.public if keys.next is not None else "")
        except BackendError as error:
            log.debug("%s", error)
            self._public_keys = ("", "")  # where it is needed, the loop tells what is wrong
        return before is not None and before != self._public_keys

    def _hand_over(self) -> float:
        """See to peers that have announced a key. Return when to look again, in seconds."""
        if not self._backend.awaits_keys:
            return TICK
        began = time.monotonic()
        try:
            self._backend.hand_over()
        except BackendError as error:
            log.debug("%s", error)
        return max(AWAITING, SHARE * (time.monotonic() - began))

    def _different(self) -> bool:
        self._look_at = time.monotonic() + self._period
        try:
            return self._backend.disturbed()
        except BackendError as error:
            log.debug("%s", error)
            return True  # the loop tells what is wrong


def _wait(descriptors: set[int], seconds: float) -> set[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
