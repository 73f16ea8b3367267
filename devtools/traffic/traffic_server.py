"""One process that answers in many Pods: `python -m devtools.traffic.traffic_server SPEC READY`.

SPEC is a JSON object, Pod name to namespace. In each it listens on `POD_PORT`, for TCP also on `DIRECT_PORT`. TCP:
on connect it sends one line of JSON with its name and the source address that it sees, then sends back every byte.
UDP: it answers each datagram with such a line followed by the datagram. READY is made when all sockets are open.
"""

from __future__ import annotations

import json
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from devtools.lab.topology import DIRECT_PORT, POD_PORT
from devtools.nodes import netns
from devtools.traffic.datagrams import roomy_socket

BUFFER = 65536
BATCH = 64  # datagrams answered at once: a queue that grew while the process had no processor must drain


@lru_cache(maxsize=4096)
def hello(name: str, peer: tuple[str, int]) -> bytes:
    """Return the line by which a server names itself and the peer that it sees."""
    return json.dumps({"pod": name, "source": peer[0], "port": peer[1]}).encode() + b"\n"


class Servers:
    """All listening sockets and connections, in one loop."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, name: str, namespace: str) -> None:
        """Open the sockets of one Pod inside its namespace."""

        def listen() -> list[tuple[Callable[[socket.socket, str], None], socket.socket]]:
            tcp = [socket.create_server(("0.0.0.0", port), backlog=512) for port in (POD_PORT, DIRECT_PORT)]
            udp = roomy_socket()
            udp.bind(("0.0.0.0", POD_PORT))
            return [*((self._accept, sock) for sock in tcp), (self._datagram, udp)]

        for handle, sock in netns.call(namespace, listen):
            sock.setblocking(False)
            self._watch(sock, handle, name)

    def _watch(self, one: socket.socket, handle: Callable[[socket.socket, str], None], name: str) -> None:
        self._selector.register(one, selectors.EVENT_READ, (handle, name))

    def _accept(self, listener: socket.socket, name: str) -> None:
        connection, peer = listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(hello(name, peer))
        self._watch(connection, self._echo, name)

    def _echo(self, connection: socket.socket, name: str) -> None:  # noqa: ARG002
        data = b""
        try:
            data = connection.recv(BUFFER)
            # A client that asks for more than it reads is no client of ours: its connection ends.
            connection.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            connection.close()

    def _datagram(self, udp: socket.socket, name: str) -> None:
        for _ in range(BATCH):
            try:
                data, peer = udp.recvfrom(BUFFER)
            except BlockingIOError:
                return
            udp.sendto(hello(name, peer) + data, peer)

    def run(self) -> None:
        """Serve for ever."""
        while True:
            for key, _ in self._selector.select():
                handle, name = key.data
                try:
                    handle(key.fileobj, name)
                except OSError:
                    continue  # the client has gone, or the way back is not there now: the next one counts


def main(argv: list[str]) -> int:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    servers = Servers()
    for name, namespace in json.loads(Path(argv[0]).read_text()).items():
        servers.add(name, namespace)
    Path(argv[1]).touch()
    servers.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
