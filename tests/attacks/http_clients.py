"""Clients of the attacks on HTTP servers: hostile ones, and those that must be served all the same."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from mcagent.agent.config import Settings
from mcagent.agent.reports.servers import AgentServers
from mcagent.http.server import Page, Pages
from mcagent.model.config import Config

ATTACKER = "127.0.0.66"  # another source on this machine than 127.0.0.1, from which the rightful ask
PAGES: Pages = {
    "/healthz": lambda: Page(body="ok\n"),
    "/readyz": lambda: Page(
        body="[-] connected: Gateway: https://10.0.0.1:6443: refused\nnot ready\n", status=503
    ),
    "/metrics": lambda: Page(body="mcagent_ready 1\n"),
    "/status": lambda: Page(body='{"node": "n1"}\n', content_type="application/json"),
}


@contextmanager
def served(directory: Path, pages: Pages = PAGES, **settings: object) -> Iterator[AgentServers]:
    """Run an agent's servers as the DaemonSet configures them: pages on all addresses, health."""
    core = Config(node_name="n1")
    if "kubeconfig" not in settings:
        settings["source"] = "dir:/nowhere"
    found = {"listen": "0.0.0.0:0", "health_listen": "0.0.0.0:0", "run_dir": str(directory), **settings}
    servers = AgentServers(Settings(core=core, **found), pages)  # type: ignore[arg-type]
    try:
        yield servers
    finally:
        servers.close()


@cache
def unverified() -> ssl.SSLContext:
    """Return the context of a client that believes any certificate, as Prometheus with insecure_skip_verify."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def get(
    port: int, path: str, token: str = "", *, tls: bool = False, timeout: float = 5.0, method: str = "GET"
) -> tuple[int, str]:
    """Ask as a rightful client does; return status and body. Raises OSError, http.client.HTTPException."""
    connection = (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout, context=unverified())
        if tls
        else http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    )
    try:
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def status_of(port: int, request: str, **headers: str) -> int:
    """Send a request ("GET /status") with headers; return the status of the answer. `_` stands for `-`."""
    lines = [f"{request} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    answer = exchange(port, ("\r\n".join(lines) + "\r\n\r\n").encode())
    return int(answer[9:12])


def connect(port: int, source: str = ATTACKER) -> socket.socket:
    """Return a connection of the attacker."""
    return socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))


def crowd(port: int, count: int) -> list[socket.socket]:
    """Return many connections of the attacker, begun all at once: some are made, others wait for the server."""
    sockets = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((ATTACKER, 0))
        sock.connect_ex(("127.0.0.1", port))
        sockets.append(sock)
    return sockets


def exchange(port: int, request: bytes, *, tls: bool = False) -> bytes:
    """Send bytes and return all that comes back until the server closes."""
    raw = connect(port)
    with unverified().wrap_socket(raw) if tls else raw as stream:
        found = b""
        with suppress(OSError):
            stream.sendall(request)
            while data := stream.recv(65536):
                found += data
        return found


class Idle:
    """Many connections of the attacker that never ask anything whole; each sends `drip` again and again."""

    def __init__(self, port: int, count: int, *, begin: bytes = b"", drip: bytes = b"") -> None:
        self._port, self._begin, self._drip = port, begin, drip
        self._stopping = threading.Event()
        self.made = [self._make() for _ in range(count)]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Idle:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stopping.set()
        self._thread.join()
        for one in self.made:
            one.close()

    def _make(self) -> socket.socket:
        sock = connect(self._port)
        with suppress(OSError):
            sock.sendall(self._begin)
        return sock

    def _run(self) -> None:
        """Drip, and come back as soon as a connection has ended: an attacker does not give up."""
        while not self._stopping.wait(0.1):
            for index, sock in enumerate(self.made):
                try:
                    if self._drip:
                        sock.sendall(self._drip)
                    sock.setblocking(False)
                    gone = sock.recv(4096) == b""
                except BlockingIOError:
                    gone = False
                except OSError:
                    gone = True
                sock.settimeout(10)
                if gone and not self._stopping.is_set():
                    sock.close()
                    with suppress(OSError):
                        self.made[index] = self._make()
