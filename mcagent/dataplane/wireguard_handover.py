"""Notices at once that a peer has begun to use the key it announced.

Owns a thread and, only while some peer has announced a key, packet sockets that get handshake initiations, notices
of a new key (`wireguard_rekey`) and nothing else (a filter in the kernel sees to it). Whose a message is,
`wireguard_noise` says; what follows is the backend's.

Why not wait until the peer publishes the key: after its switch it can send nothing before a handshake, and
queues up to 128 packets until there was one. We do not know its new key yet, so we do not answer; as soon as its
networks are the new key's we shake hands ourselves, and the queue is delivered. A peer with the new key but
without networks, made beforehand, would answer at once, and everything sent until the networks move would be
dropped.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from mcagent.dataplane.wireguard_driver import Endpoint
from mcagent.dataplane.wireguard_noise import INITIATION, INITIATION_LENGTH, NOTICE, initiator
from mcagent.model.errors import BackendError
from mcagent.model.net import parse_address
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

ETH_P_IP, ETH_P_IPV6 = 0x0800, 0x86DD  # linux/if_ether.h
UDP = 17
SO_ATTACH_FILTER = 26  # asm-generic/socket.h
UDP_HEADER = 8  # bytes
# Seconds in which what the peer sent under its old key is taken in, as far as the notice overtook it: WireGuard
# decrypts in other threads. The peer sends nothing meanwhile, and takes what we send it under its old key.
GRACE = 0.02
# Seconds between the looks whether hands were shaken: longer than a round trip, and shorter than the 5 s after
# which WireGuard itself tries again. Beginning anew loses what waits for the answer, so it is not done early.
LOOKS = (0.7, 1.3, 2.0)
BURST = 32  # messages looked into at a time, each 0.3 ms of work,
PAUSE = 0.02  # seconds of rest after each such burst: a flood of initiations must not take a CPU


class Handover:
    """Calls `seen(public key, endpoint)` for each proven initiation, from a thread of its own."""

    def __init__(
        self,
        private_keys: Callable[[], Iterable[bytes]],
        seen: Callable[[str, Endpoint], None],
        look_back: Callable[[], None],
    ) -> None:
        """`private_keys` are those a message to us may be for. `look_back` is called some time after `seen`.

        All of them may raise BackendError.
        """
        self._look_back = look_back
        self._looks: list[float] = []  # when to look back: monotonic seconds
        self._private_keys = private_keys
        self._seen = seen
        self._port = 0
        self._sockets: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._stop_reader: socket.socket | None = None
        self._stop_writer: socket.socket | None = None
        self._refused = False

    def watch(self, port: int) -> None:
        """Watch initiations to that UDP port of the calling thread's namespace; 0: watch no more."""
        if port == self._port and (self._thread is None or self._thread.is_alive()):
            return
        self._end()
        if not port:
            return
        try:
            self._sockets = [_listen(ETH_P_IP, filter_ipv4(port)), _listen(ETH_P_IPV6, filter_ipv6(port))]
        except OSError as error:
            if not self._refused:
                log.warning(
                    "a peer's new WireGuard key will be used when it is published, not at once: packet socket: %s "
                    "(CAP_NET_RAW is needed)",
                    error.strerror,
                )
            self._refused = True
            return
        self._port = port
        self._stop_reader, self._stop_writer = socket.socketpair()
        arguments = (list(self._sockets), self._stop_reader)
        self._thread = Supervised(self._run, args=arguments, name="wireguard-handover")
        self._thread.start()

    def _end(self) -> None:
        """End the thread, without waiting: it may be the caller, or wait for a lock of the caller's."""
        self._port = 0
        if self._stop_writer is not None:
            with contextlib.suppress(OSError):
                self._stop_writer.send(b"x")
            self._stop_writer.close()
        self._thread = self._stop_writer = self._stop_reader = None
        self._sockets = []

    def _run(self, sockets: list[socket.socket], stop: socket.socket) -> None:
        poll = select.poll()
        readers = {one.fileno(): one for one in sockets}
        for descriptor in (*readers, stop.fileno()):
            poll.register(descriptor, select.POLLIN)
        try:
            while True:
                wait = (self._looks[0] - time.monotonic()) * 1000 if self._looks else None
                for descriptor, _ in poll.poll(wait if wait is None else max(0.0, wait)):
                    if descriptor == stop.fileno():
                        return
                    self._read(readers[descriptor])
                if self._looks and self._looks[0] <= time.monotonic():
                    del self._looks[0]
                    _try(self._look_back)
        finally:
            for one in (*sockets, stop):
                one.close()

    def _read(self, reader: socket.socket) -> None:
        for _ in range(BURST):
            try:
                packet = reader.recv(2048)
            except BlockingIOError:
                return
            except OSError as error:  # the device it came by went down
                log.debug("packet socket: %s", error)
                return
            _try(partial(self._look, packet))
        time.sleep(PAUSE)

    def _look(self, packet: bytes) -> None:
        """Look into one packet, which the filter let pass."""
        start = (packet[0] & 0xF) * 4 if packet[0] >> 4 == 4 else 40
        message = packet[start + UDP_HEADER : start + UDP_HEADER + INITIATION_LENGTH]
        sender = initiator(message, self._private_keys())
        if sender is not None:
            time.sleep(GRACE)
            now = time.monotonic()
            self._looks = [now + sum(LOOKS[: place + 1]) for place in range(len(LOOKS))]
            source = packet[12:16] if packet[0] >> 4 == 4 else packet[8:24]
            port = int.from_bytes(packet[start : start + 2], "big")
            self._seen(sender, (parse_address(socket.inet_ntop(_FAMILY[len(source)], source)), port))


def _try(work: Callable[[], None]) -> None:
    """Do it; what fails is told, and ends nothing."""
    try:
        work()
    except BackendError as error:
        log.warning("%s", error)


_FAMILY = {4: socket.AF_INET, 16: socket.AF_INET6}

# Classic BPF (linux/filter.h); packets of SOCK_DGRAM packet sockets begin with the network header.
_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD, _LOAD_HALF_X, _LOAD_WORD_X = 0x30, 0x28, 0x20, 0x48, 0x40
_LOAD_X_HEADER, _EQUAL, _ANY_BIT, _GIVE = 0xB1, 0x15, 0x45, 0x06
_TYPES = [int.from_bytes(one, "big") for one in (INITIATION, NOTICE)]  # the first four bytes of the message


def filter_ipv4(port: int) -> bytes:
    """Return a BPF program that passes WireGuard handshake initiations and notices to a UDP port over IPv4."""
    return _program(
        (_LOAD_BYTE, 0, 0, 9),  # protocol
        (_EQUAL, 0, 10, UDP),
        (_LOAD_HALF, 0, 0, 6),
        (_ANY_BIT, 8, 0, 0x1FFF),  # a later fragment
        (_LOAD_X_HEADER, 0, 0, 0),
        (_LOAD_HALF_X, 0, 0, 2),  # destination port
        (_EQUAL, 0, 5, port),
        (_LOAD_HALF_X, 0, 0, 4),  # length
        (_EQUAL, 0, 3, UDP_HEADER + INITIATION_LENGTH),
        (_LOAD_WORD_X, 0, 0, UDP_HEADER),
        (_EQUAL, 2, 0, _TYPES[0]),
        (_EQUAL, 1, 0, _TYPES[1]),
    )


def filter_ipv6(port: int) -> bytes:
    """Return the same for IPv6 without extension headers."""
    return _program(
        (_LOAD_BYTE, 0, 0, 6),  # next header
        (_EQUAL, 0, 7, UDP),
        (_LOAD_HALF, 0, 0, 42),
        (_EQUAL, 0, 5, port),
        (_LOAD_HALF, 0, 0, 44),
        (_EQUAL, 0, 3, UDP_HEADER + INITIATION_LENGTH),
        (_LOAD_WORD, 0, 0, 40 + UDP_HEADER),
        (_EQUAL, 2, 0, _TYPES[0]),
        (_EQUAL, 1, 0, _TYPES[1]),
    )


def _program(*code: tuple[int, int, int, int]) -> bytes:
    """Pack instructions, and behind them "drop" and "pass"."""
    return b"".join(struct.pack("HBBI", *one) for one in (*code, (_GIVE, 0, 0, 0), (_GIVE, 0, 0, 0xFFFFFFFF)))


def _listen(protocol: int, program: bytes) -> socket.socket:
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    one = socket.socket(socket.AF_PACKET, kind, socket.htons(protocol))
    try:
        buffer = ctypes.create_string_buffer(program, len(program))
        fprog = struct.pack("HL", len(program) // 8, ctypes.addressof(buffer))  # struct sock_fprog
        one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, fprog)
        # Python cannot bind to all devices later, so what came before the filter stood is read away.
        with contextlib.suppress(BlockingIOError):
            while True:
                one.recv(1)
    except OSError:
        one.close()
        raise
    return one
