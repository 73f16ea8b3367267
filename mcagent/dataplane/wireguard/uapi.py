"""The configuration protocol of userspace WireGuard: its text form, and an exchange over a Unix socket.

Source: wireguard.com/xplatform, "Cross-platform Userspace Implementation". Keys are hexadecimal in the protocol,
base64 everywhere else in mcagent.
"""

from __future__ import annotations

import base64
import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path

from mcagent.dataplane.wireguard.driver import DeviceChange, Endpoint, PeerChange, RawDevice, RawPeer
from mcagent.dataplane.wireguard.keys import public_key
from mcagent.model.net import network_key, socket_text

TIMEOUT = 10.0  # seconds; an answer takes milliseconds, with a thousand peers about ten
_UCRED = struct.Struct("=iII")  # pid, uid, gid
GET = "get=1\n\n"


def exchange(path: Path, request: str, *, pid: int) -> str:
    """Send a request to the socket at `path` and return the answer without its last line.

    Raises OSError if no process or another one than `pid` listens, or for an error number in the answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(TIMEOUT)
        connection.connect(str(path))
        listener, _, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if listener != pid:
            raise ConnectionRefusedError(f"{path} is process {listener}'s, not {pid}'s")
        connection.sendall(request.encode())
        answer = bytearray()
        while not answer.endswith(b"\n\n"):
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError(f"{path}: closed without an answer")
            answer += data
    body, _, status = answer.decode().strip("\n").rpartition("errno=")
    if status != "0":
        number = abs(int(status)) if status.lstrip("-").isdecimal() else 5
        raise OSError(number, os.strerror(number))
    return body


def change_text(change: DeviceChange) -> str:
    """Make the request for a change."""
    lines = ["set=1"]
    if change.private_key is not None:
        lines.append(f"private_key={change.private_key.hex()}")
    if change.listen_port is not None:
        lines.append(f"listen_port={change.listen_port}")
    if change.fwmark is not None:
        lines.append(f"fwmark={change.fwmark}")
    for peer in change.peers:
        lines.extend(_peer_lines(peer))
    return "\n".join(lines) + "\n\n"


def parse_device(text: str) -> RawDevice:
    """Parse the answer to GET. Raises ValueError for malformed values."""
    head, *peers = text.split("public_key=")
    device = dict(_pairs(head))
    private = bytes.fromhex(device.get("private_key", ""))
    return RawDevice(
        private_key=private if any(private) else None,
        public_key=public_key(private) if any(private) else "",
        listen_port=int(device.get("listen_port", "0")),
        fwmark=int(device.get("fwmark", "0")),
        peers={peer.public_key: peer for peer in map(_parse_peer, peers)},
    )


def _pairs(text: str) -> list[tuple[str, str]]:
    parts = (line.partition("=") for line in text.splitlines())
    return [(key, value) for key, _, value in parts]


def _parse_peer(text: str) -> RawPeer:
    """Parse the text after "public_key=": the key, then the lines of the peer."""
    key, _, lines = text.partition("\n")
    pairs = _pairs(lines)
    values = dict(pairs)
    networks = [ip_network(value) for name, value in pairs if name == "allowed_ip"]
    seconds, nanoseconds = (int(values.get(f"last_handshake_time_{unit}", "0")) for unit in ("sec", "nsec"))
    return RawPeer(
        public_key=base64.b64encode(bytes.fromhex(key)).decode(),
        endpoint=_endpoint(values["endpoint"]) if "endpoint" in values else None,
        allowed_ips=tuple(sorted(networks, key=network_key)),
        keepalive=int(values.get("persistent_keepalive_interval", "0")),
        last_handshake=seconds + nanoseconds / 1e9,
        received=int(values.get("rx_bytes", "0")),
        sent=int(values.get("tx_bytes", "0")),
        preshared=bool(values.get("preshared_key", "").strip("0")),
    )


def _endpoint(value: str) -> Endpoint:
    host, _, port = value.rpartition(":")
    return ip_address(host.strip("[]").partition("%")[0]), int(port)


def _peer_lines(change: PeerChange) -> Iterator[str]:
    yield f"public_key={base64.b64decode(change.public_key).hex()}"
    if change.remove:
        yield "remove=true"
        return
    if change.endpoint is not None:
        yield f"endpoint={socket_text(*change.endpoint)}"
    if change.replace_allowed_ips:
        yield "replace_allowed_ips=true"
    for network in change.allowed_ips:
        yield f"allowed_ip={network}"
    if change.keepalive is not None:
        yield f"persistent_keepalive_interval={change.keepalive}"
