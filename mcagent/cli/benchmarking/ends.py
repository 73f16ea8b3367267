"""The two ends of a measurement: a server that swallows or echoes, and what sends to it. Bounded in time and rate.

Owns the protocol: a line of JSON that says the token and what is wanted; then, for "sink", bytes up to the end of
the stream, answered by a line with how many came in which time; for "echo", messages that come back as they are.
Who does not know the token gets nothing. Knows no Kubernetes.
"""

from __future__ import annotations

import hmac
import json
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mcagent.model.errors import McagentError
from mcagent.supervised import Supervised

MOST = 8  # connections at a time
MESSAGE = 64  # bytes that are echoed
_CHUNK = 256 * 1024  # bytes given to the kernel at once
_TURN = 0.01  # seconds: how finely a rate is kept
_LINE = 1024  # bytes
_PATIENCE = 10.0  # seconds without a byte
_WARM = 20  # exchanges that do not count


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a measurement came to. Rate in bits a second as the server saw it; round trips in seconds."""

    bits_per_second: float
    bytes: int
    seconds: float
    round_trip_p50: float
    round_trip_p99: float


def preferred(addresses: Sequence[str]) -> str:
    """Return the first IPv4 address, since clusters reach each other's Pods by IPv4; without one the first."""
    return next((address for address in addresses if ":" not in address), addresses[0])


def serve(addresses: Sequence[str], port: int, token: str, seconds: float) -> None:
    """Serve for so many seconds at the preferred address. Raises OSError when it cannot listen."""
    end, places = time.monotonic() + seconds, threading.BoundedSemaphore(MOST)
    address = preferred(addresses)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, port), family=family) as listening:
        while (remaining := end - time.monotonic()) > 0:
            listening.settimeout(remaining)
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                return
            if places.acquire(blocking=False):
                Supervised(_served, name="benchmark", args=(connection, token, places)).start()
            else:
                connection.close()


def _served(connection: socket.socket, token: str, places: threading.BoundedSemaphore) -> None:
    try:
        with connection, suppress(OSError, ValueError):
            connection.settimeout(_PATIENCE)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = _read_line(connection)
            if hmac.compare_digest(str(request.get("token", "")).encode(), token.encode()):
                _sink(connection) if request.get("want") == "sink" else _echo(connection)
    finally:
        places.release()


def _sink(connection: socket.socket) -> None:
    buffer, count, began = bytearray(_CHUNK), 0, time.monotonic()
    while received := connection.recv_into(buffer):
        count += received
    _write_line(connection, {"bytes": count, "seconds": time.monotonic() - began})


def _echo(connection: socket.socket) -> None:
    while message := connection.recv(MESSAGE):
        connection.sendall(message)


def measure(
    address: str, port: int, token: str, *, seconds: float, limit: int, exchanges: int, patience: float = 30.0
) -> Measured:
    """Send for so many seconds, at most `limit` bits a second (0: any), then exchange messages.

    A server that does not listen yet is waited for, `patience` seconds. Raises McagentError.
    """
    try:
        with _connected(address, port, patience) as connection:
            _write_line(connection, {"token": token, "want": "sink"})
            _send(connection, seconds, limit)
            connection.shutdown(socket.SHUT_WR)
            result = _read_line(connection)
        with _connected(address, port, patience) as connection:
            _write_line(connection, {"token": token, "want": "echo"})
            for _ in range(_WARM):
                _exchange(connection)
            trips = sorted(_exchange(connection) for _ in range(max(1, exchanges)))
        count, took = int(result["bytes"]), float(result["seconds"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise McagentError(f"{address}:{port}: {str(error) or type(error).__name__}") from None
    return Measured(
        bits_per_second=8 * count / max(took, 1e-9),
        bytes=count,
        seconds=took,
        round_trip_p50=trips[len(trips) // 2],
        round_trip_p99=trips[min(len(trips) - 1, len(trips) * 99 // 100)],
    )


def _connected(address: str, port: int, patience: float) -> socket.socket:
    end = time.monotonic() + patience
    while True:
        remaining = max(0.1, end - time.monotonic())
        try:
            connection = socket.create_connection((address, port), timeout=min(remaining, _PATIENCE))
        except OSError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)
            continue
        connection.settimeout(_PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _send(connection: socket.socket, seconds: float, limit: int) -> None:
    size = min(_CHUNK, max(1, round(limit / 8 * _TURN))) if limit else _CHUNK
    data, began, sent = memoryview(bytes(size)), time.monotonic(), 0
    while (spent := time.monotonic() - began) < seconds:
        early = 8 * sent / limit - spent if limit else 0.0
        if early > 0:
            time.sleep(min(early, seconds - spent))
            continue
        connection.sendall(data)
        sent += size


def _exchange(connection: socket.socket) -> float:
    began, remaining = time.monotonic(), MESSAGE
    connection.sendall(bytes(MESSAGE))
    while remaining:
        received = len(connection.recv(remaining))
        if not received:
            raise OSError("the server closed the connection")
        remaining -= received
    return time.monotonic() - began


def _write_line(connection: socket.socket, value: dict[str, Any]) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def _read_line(connection: socket.socket) -> dict[str, Any]:
    """Return a line of JSON, and read nothing beyond it. Raises OSError, ValueError."""
    text = b""
    while not text.endswith(b"\n"):
        part = connection.recv(1)
        if not part or len(text) > _LINE:
            raise OSError("the server refuses, or is another program")
        text += part
    message = json.loads(text)
    if not isinstance(message, dict):
        raise ValueError("no object")
    return message
