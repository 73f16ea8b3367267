"""UDP sockets of those who count packets: what the network delivers, the socket keeps until it is read."""

from __future__ import annotations

import socket

_SO_RCVBUFFORCE = 33  # asm-generic/socket.h; past net.core.rmem_max, for root (socket(7))
LATE = 0.5  # seconds without any answer after which those that are missing are lost
# By default there is room for some 270 small datagrams: a process that gets no processor for a second or two would
# lose more, and these would count as lost on the way.
ROOM = 16 * 2**20  # bytes, with what the kernel adds to each datagram


def roomy_socket() -> socket.socket:
    """Return a UDP socket, in the network namespace of this thread. Raises OSError (not root)."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, ROOM)
    return sock
