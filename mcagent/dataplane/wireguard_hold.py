"""Holds packets back while a device changes its key: a queue between netfilter and this process (NFQUEUE).

WireGuard itself keeps 128 packets for a peer that has not answered yet and drops the others; here there is room
for many more, so that it does not matter how soon an agent on a busy machine gets to its work. Packets stay in
the kernel; only the first bytes of each are read. Where there is no room left they pass. When the process ends
they are lost.

linux/netfilter/nfnetlink_queue.h; all numbers big-endian, unlike the netlink headers around them.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from ipaddress import IPv4Address

from mcagent.dataplane.netlink.connection import NETLINK_NETFILTER, SO_RCVBUFFORCE
from mcagent.dataplane.netlink.messages import (
    NLM_F_ACK,
    NLM_F_REQUEST,
    NLMSGHDR,
    attribute,
    attributes,
    messages,
)
from mcagent.model.net import Address

QUEUE = 51821  # of the network namespace; any that nobody else uses
ROOM = 1 << 14  # packets
# What goes at a time, and seconds of rest after it: a TUN device takes 500 packets, WireGuard's queues 1,024.
BURST, REST = 64, 0.0005
BUFFER = 64 << 20  # bytes of messages about packets that are not read yet
_PACKET, _VERDICT, _CONFIG = (0x300 | number for number in (0, 1, 2))
_CFG_CMD, _CFG_PARAMS, _CFG_MAXLEN, _CFG_MASK, _CFG_FLAGS = 1, 2, 3, 4, 5
_BIND, _COPY_PACKET = 1, 2
_FAIL_OPEN_AND_GSO = 1 | 4
_PACKET_HDR, _VERDICT_HDR, _PAYLOAD = 1, 2, 10
_ACCEPT = 1
_NFGENMSG = struct.Struct(">BBH")  # family, version, number of the queue
_DESTINATION = slice(16, 20)  # in an IPv4 header


class Hold:
    """The packets that wait, by their destination."""

    def __init__(self) -> None:
        """Open the queue. Raises OSError where the kernel has none, or somebody else has it."""
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, NETLINK_NETFILTER
        )
        self._waiting: dict[Address, deque[int]] = {}
        self._gone = 0  # packets
        self._free: set[Address] | None = set()  # destinations that nothing is held back for; None: all
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
            self._socket.bind((0, 0))
            self._configure(_CFG_CMD, struct.pack(">BxH", _BIND, 0))
            self._configure(_CFG_PARAMS, struct.pack(">IB", _DESTINATION.stop, _COPY_PACKET))
            self._configure(_CFG_MAXLEN, struct.pack(">I", ROOM))
            flags = struct.pack(">I", _FAIL_OPEN_AND_GSO)
            self._configure(_CFG_FLAGS, flags, attribute(_CFG_MASK, flags))
        except OSError:
            self._socket.close()
            raise

    def release(self, addresses: Iterable[Address]) -> None:
        """Let what waits for these addresses go, and what is still to come."""
        for address in addresses:
            if self._free is not None:
                self._free.add(address)
            for number in self._waiting.pop(address, ()):
                self._accept(number)

    def release_all(self) -> None:
        """Let everything go."""
        self.look()
        self.release(list(self._waiting))
        self._free = None

    def look(self) -> None:
        """Take in what has come; let go at once what is not to be held back."""
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:  # told of fewer packets than there are: what was not told of has passed
                if error.errno != errno.ENOBUFS:
                    return
                continue
            number, destination = _parse(data)
            if number is None:
                continue
            if destination is None or self._free is None or destination in self._free:
                self._accept(number)
            else:
                self._waiting.setdefault(destination, deque()).append(number)

    def close(self) -> None:
        """Close the queue, when no rule leads into it any more."""
        self.release_all()
        self.look()
        self._socket.close()

    def _configure(self, kind: int, value: bytes, more: bytes = b"") -> None:
        """Send one setting and wait for the answer. Raises OSError when it is refused."""
        self._socket.setblocking(True)
        try:
            self._socket.send(_message(_CONFIG, attribute(kind, value) + more, acknowledge=True))
            answer = self._socket.recv(1 << 12)
        finally:
            self._socket.setblocking(False)
        number = -struct.unpack_from("=i", answer, NLMSGHDR.size)[0]
        if number:
            raise OSError(number, f"packet queue {QUEUE}: {errno.errorcode.get(number, number)}")

    def _accept(self, number: int) -> None:
        self._gone += 1
        if not self._gone % BURST:
            time.sleep(REST)
        with contextlib.suppress(OSError):  # of one that is gone
            self._socket.send(_message(_VERDICT, attribute(_VERDICT_HDR, struct.pack(">II", _ACCEPT, number))))


def _message(kind: int, content: bytes, *, acknowledge: bool = False) -> bytes:
    flags = NLM_F_REQUEST | (NLM_F_ACK if acknowledge else 0)
    payload = _NFGENMSG.pack(0, 0, QUEUE) + content
    return NLMSGHDR.pack(NLMSGHDR.size + len(payload), kind, flags, 0, 0) + payload


def _parse(data: bytes) -> tuple[int | None, Address | None]:
    """Return a packet's number and where it goes; None for what is no packet, or not IPv4."""
    for kind, _, _, body in messages(data):  # the kernel sends them one by one
        if kind != _PACKET:
            break
        found = attributes(body, _NFGENMSG.size)
        head, payload = found.get(_PACKET_HDR), found.get(_PAYLOAD, b"")
        whole = len(payload) >= _DESTINATION.stop and payload[0] >> 4 == 4
        return (
            int.from_bytes(head[:4]) if head is not None else None,
            IPv4Address(payload[_DESTINATION]) if whole else None,
        )
    return None, None
