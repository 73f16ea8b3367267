"""A probe of the way of a Pod's packets between its network namespace and the host port, and of answers to others.

Sockets in the Pod's namespace exchange a few datagrams with an address of another cluster. Those that leave are
captured at the host port; those that arrive are sent from the bridge to it. Nothing is configured, and the other
cluster need not answer: what the Pod sends goes there, and is ignored (UDP port 9, discard). Whatever forwards,
filters or translates on the Node, known or not, shows in what arrives where.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address

from flows.pipeline.registers import HOST_MAC, HOST_OFPORT, MAC_PLAIN
from mcagent.dataplane import packets
from mcagent.dataplane.openflow.ofctl import Ofctl
from mcagent.model.errors import BackendError

WAIT = 1.0  # seconds for each datagram
_DISCARD = 9
_CLONE_NEWNET = 0x40000000  # setns(2)
_ETH_P_ALL = 3
Inject = Callable[[bytes], None]  # sends a frame from the bridge to the host port


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPath:
    """A Pod and an address of another cluster. `source`: of the Pod's packets at the host port; None: none came.

    `delivered`: a packet of the other cluster reached the Pod; `answer_source`: as `source`, of the Pod's answer.
    """

    pod: IPv4Address
    remote: IPv4Address
    source: IPv4Address | None = None
    delivered: bool = False
    answer_source: IPv4Address | None = None


def probe_pod(
    namespace: str, host_port: str, remotes: Iterable[IPv4Address], inject: Inject
) -> tuple[PodPath, ...]:
    """Probe the way between a Pod, by the path of its namespace, and addresses of other clusters.

    Needs CAP_SYS_ADMIN (setns) and CAP_NET_RAW. Raises BackendError.
    """
    try:
        return tuple(_probe(namespace, host_port, remote, inject) for remote in remotes)
    except OSError as error:
        raise BackendError("probe", "use", namespace, error.strerror or str(error)) from None


def _probe(namespace: str, host_port: str, remote: IPv4Address, inject: Inject) -> PodPath:
    with ExitStack() as opened:
        tap = opened.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL)))
        tap.bind((host_port, _ETH_P_ALL))
        client, server = (opened.enter_context(_socket_in(namespace, remote)) for _ in range(2))
        pod = IPv4Address(client.getsockname()[0])
        token = secrets.token_bytes(16)
        client.sendto(token, (str(remote), _DISCARD))
        source = _seen(tap, token)
        ends = packets.Ends(int(remote), int(pod), (_DISCARD, server.getsockname()[1]))
        request = secrets.token_bytes(16)
        inject(packets.frame(HOST_MAC, MAC_PLAIN, packets.ipv4(ends, packets.UDP, packets.udp(ends, request))))
        delivered, answer_source = _received(server, request), None
        if delivered:
            answer = secrets.token_bytes(16)
            server.sendto(answer, (str(remote), _DISCARD))
            answer_source = _seen(tap, answer)
    return PodPath(pod=pod, remote=remote, source=source, delivered=delivered, answer_source=answer_source)


def _socket_in(namespace: str, remote: IPv4Address) -> socket.socket:
    """Return a UDP socket of a namespace, bound to the source address that the Pod uses towards another cluster.

    A thread of its own enters the namespace; the socket stays there. Raises OSError.
    """

    def make() -> socket.socket:
        libc = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12
        descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(descriptor, _CLONE_NEWNET):
                code = ctypes.get_errno()
                raise OSError(code, f"{os.strerror(code)} (setns)")
        finally:
            os.close(descriptor)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connected:
            connected.connect((str(remote), _DISCARD))
            address = connected.getsockname()[0]
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.bind((address, 0))
        return bound

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def _seen(tap: socket.socket, token: bytes) -> IPv4Address | None:
    """Return the source of the packet with a token that leaves by the device; None if it does not come."""
    until = time.monotonic() + WAIT
    while (remaining := until - time.monotonic()) > 0:
        if select.select([tap], [], [], remaining)[0]:
            packet, (_, _, kind, *_) = tap.recvfrom(65535)
            if kind == socket.PACKET_OUTGOING and token in packet and packet[0] >> 4 == 4:
                return IPv4Address(packet[12:16])
    return None


def _received(server: socket.socket, token: bytes) -> bool:
    server.settimeout(WAIT)
    try:
        return server.recv(65535) == token
    except TimeoutError:
        return False


def from_bridge(management_socket: str) -> Inject:
    """Return a function that sends a frame to the host port by Open vSwitch."""
    ofctl = Ofctl(management_socket)

    def inject(frame: bytes) -> None:
        text = f"in_port=controller,packet={frame.hex()},actions=output:{HOST_OFPORT}"
        done = ofctl.run("packet-out", management_socket, text)
        if done.returncode:
            raise BackendError("probe", "send", "a packet", done.stderr.strip())

    return inject
