"""An API server that runs commands in Pods of agents (`pods/exec`)."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig

_WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3


def channel(number: int, text: str) -> bytes:
    """Return a message of v4.channel.k8s.io as a WebSocket frame (RFC 6455, 5.2)."""
    data = bytes([number]) + text.encode()
    length = bytes([len(data)]) if len(data) < 126 else struct.pack("!BH", 126, len(data))
    return b"\x82" + length + data


def ended(code: int = 0) -> bytes:
    """Return the last message and the close frame."""
    failed = {"reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
    status = {"status": "Failure", **failed} if code else {"status": "Success"}
    return channel(3, json.dumps(status)) + b"\x88\x02\x03\xe8"


class ExecServer:
    """Answers listings and one kind of exec; keeps what was asked."""

    def __init__(self, answer: Callable[[list[str]], bytes]) -> None:
        self._answer = answer
        self.asked: list[dict[str, list[str]]] = []
        self.listed: object = None  # the answer to each listing, instead of `OBJECTS`
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._closing = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(65536)
            lines = head.decode().split("\r\n")
            target = urlsplit(lines[0].split()[1])
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
            if not target.path.endswith("/exec"):
                kind = {"pods": "Pod", "nodes": "Node", "configmaps": "ConfigMap"}[target.path.rpartition("/")[2]]
                meta = {"resourceVersion": "1"}
                usual = {"kind": f"{kind}List", "metadata": meta, "items": OBJECTS[target.path]}
                text = json.dumps(usual if self.listed is None else self.listed).encode()
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text
                )
                return
            question = {
                **parse_qs(target.query),
                "authorization": [headers["authorization"]],
                "path": [target.path],
            }
            self.asked.append(question)
            answer = self._answer(question["command"])
            if answer.startswith(b"HTTP"):
                connection.sendall(answer)
                return
            accepted = base64.b64encode(
                hashlib.sha1(headers["sec-websocket-key"].encode() + _WEBSOCKET).digest()
            ).decode()
            connection.sendall(
                f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Accept: {accepted}\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n".encode()
            )
            connection.sendall(answer)
            if not answer.endswith(b"\x88\x02\x03\xe8"):
                self._closing.wait(30)


OBJECTS = {
    "/api/v1/pods": [
        {
            "metadata": {"namespace": "kube-system", "name": f"mcagent-agent-{node}"},
            "spec": {"nodeName": node},
            "status": {"phase": phase},
        }
        for node, phase in (("a", "Running"), ("b", "Pending"))
    ],
    "/api/v1/configmaps": [],
    "/api/v1/nodes": [{"metadata": {"name": node}, "status": {}} for node in "ab"],
}


@contextlib.contextmanager
def serving(answer: Callable[[list[str]], bytes]) -> Iterator[tuple[ExecServer, Client]]:
    """Serve exec, and give a client of it."""
    server = ExecServer(answer)
    client = Client(token_kubeconfig(server.url, b"", "our-token"))
    try:
        yield server, client
    finally:
        client.close()
        server.close()
