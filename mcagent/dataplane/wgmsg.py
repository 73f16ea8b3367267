"""Messages of the generic netlink family "wireguard" as bytes.

Owns the layout (linux/wireguard.h, linux/genetlink.h) and nothing else. Packed here and not by pyroute2 for the
reasons of `rtmsg`, and because pyroute2 0.9 takes one peer per message: moving a network from one peer to another
has to be one.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from ipaddress import ip_address, ip_network

from mcagent.dataplane.netlink.messages import AF_INET, AF_INET6, NLATTR, U32, attribute, attributes
from mcagent.dataplane.wireguard_driver import DeviceChange, Endpoint, PeerChange, RawDevice, RawPeer
from mcagent.model.net import Network, network_key

# linux/genetlink.h
NETLINK_GENERIC = 16
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
# linux/wireguard.h
FAMILY = "wireguard"
CMD_GET_DEVICE, CMD_SET_DEVICE, VERSION = 0, 1, 1
DEVICE_IFNAME, DEVICE_PRIVATE_KEY, DEVICE_PUBLIC_KEY, DEVICE_LISTEN_PORT = 2, 3, 4, 6
DEVICE_FWMARK, DEVICE_PEERS = 7, 8
PEER_PUBLIC_KEY, PEER_PRESHARED_KEY, PEER_FLAGS, PEER_ENDPOINT, PEER_KEEPALIVE = 1, 2, 3, 4, 5
PEER_LAST_HANDSHAKE, PEER_RX_BYTES, PEER_TX_BYTES, PEER_ALLOWEDIPS = 6, 7, 8, 9
PEER_F_REMOVE_ME, PEER_F_REPLACE_ALLOWEDIPS = 1, 2
ALLOWEDIP_FAMILY, ALLOWEDIP_IPADDR, ALLOWEDIP_CIDR_MASK = 1, 2, 3

NLA_F_NESTED = 0x8000
PEERS_SIZE = 32_000  # bytes of peers in one message: an attribute holds less than 65,536
PEER_NETWORKS = 500  # allowed IPs in one attribute of a peer
_NO_KEY = bytes(32)
_U16, _U64 = struct.Struct("=H"), struct.Struct("=Q")
_TIMESPEC = struct.Struct("=qq")
_SOCKADDR4 = struct.Struct("=H2s4s8x")
_SOCKADDR6 = struct.Struct("=H2sI16sI")


def family_payload() -> bytes:
    """Pack the question for the family's number; the kernel loads its module for it where there is one."""
    return bytes((CTRL_CMD_GETFAMILY, 1, 0, 0)) + attribute(CTRL_ATTR_FAMILY_NAME, FAMILY.encode() + b"\0")


def parse_family(body: bytes) -> int:
    """Read the family's number from the answer."""
    return int(struct.unpack("=H", attributes(body, 4)[CTRL_ATTR_FAMILY_ID][:2])[0])


def get_payload(name: str) -> bytes:
    """Pack a dump request for one device."""
    return bytes((CMD_GET_DEVICE, VERSION, 0, 0)) + attribute(DEVICE_IFNAME, name.encode() + b"\0")


def set_payloads(name: str, change: DeviceChange) -> list[bytes]:
    """Pack a change, in as many messages as it takes; one in all but very large ones."""
    head = bytes((CMD_SET_DEVICE, VERSION, 0, 0)) + attribute(DEVICE_IFNAME, name.encode() + b"\0")
    first = head
    if change.private_key is not None:
        first += attribute(DEVICE_PRIVATE_KEY, change.private_key)
    if change.listen_port is not None:
        first += attribute(DEVICE_LISTEN_PORT, struct.pack("=H", change.listen_port))
    if change.fwmark is not None:
        first += attribute(DEVICE_FWMARK, U32.pack(change.fwmark))
    payloads: list[bytes] = []
    chunk: list[bytes] = []
    for peer in change.peers:
        for packed in _peer(peer):
            if sum(map(len, chunk)) + len(packed) > PEERS_SIZE:
                payloads.append(_with_peers(head if payloads else first, chunk))
                chunk = []
            chunk.append(packed)
    if chunk or not payloads:
        payloads.append(_with_peers(head if payloads else first, chunk))
    return payloads


def parse_device(bodies: Iterable[bytes]) -> RawDevice:
    """Read the answers to `get_payload`: a device with many peers comes in several, cut anywhere."""
    public_key, listen_port, fwmark = "", 0, 0
    peers: dict[str, RawPeer] = {}
    last: RawPeer | None = None  # of the message before
    for body in bodies:
        found = attributes(body, 4)
        if found.get(DEVICE_PRIVATE_KEY, _NO_KEY) != _NO_KEY and DEVICE_PUBLIC_KEY in found:
            public_key = base64.b64encode(found[DEVICE_PUBLIC_KEY]).decode()
        if DEVICE_LISTEN_PORT in found:
            listen_port = int(struct.unpack("=H", found[DEVICE_LISTEN_PORT][:2])[0])
        if DEVICE_FWMARK in found:
            fwmark = int(U32.unpack_from(found[DEVICE_FWMARK])[0])
        for data in _each(found.get(DEVICE_PEERS, b"")):
            peer = _parse_peer(data)
            if last is not None and last.public_key == peer.public_key:  # the rest of its allowed IPs
                networks = sorted(last.allowed_ips + peer.allowed_ips, key=network_key)
                peer = replace(last, allowed_ips=tuple(networks))
            peers[peer.public_key] = last = peer
    return RawDevice(public_key=public_key, listen_port=listen_port, fwmark=fwmark, peers=peers)


def parse_private_key(bodies: Iterable[bytes]) -> bytes | None:
    """Read the private key from the same answers, or None if the device has none."""
    for body in bodies:
        key = attributes(body, 4).get(DEVICE_PRIVATE_KEY, _NO_KEY)
        if key != _NO_KEY:
            return key
    return None


def _with_peers(head: bytes, peers: list[bytes]) -> bytes:
    return head + (attribute(DEVICE_PEERS | NLA_F_NESTED, b"".join(peers)) if peers else b"")


def _peer(change: PeerChange) -> Iterator[bytes]:
    key = attribute(PEER_PUBLIC_KEY, base64.b64decode(change.public_key))
    if change.remove:
        yield attribute(NLA_F_NESTED, key + attribute(PEER_FLAGS, U32.pack(PEER_F_REMOVE_ME)))
        return
    networks = change.allowed_ips or ()
    flags = PEER_F_REPLACE_ALLOWEDIPS if change.replace_allowed_ips else 0
    head = key + attribute(PEER_FLAGS, U32.pack(flags))
    if change.endpoint is not None:
        head += attribute(PEER_ENDPOINT, _endpoint(change.endpoint))
    tail = b"" if change.keepalive is None else attribute(PEER_KEEPALIVE, struct.pack("=H", change.keepalive))
    # The kernel works through allowed IPs, then the keepalive, which may send at once.
    parts = [networks[place : place + PEER_NETWORKS] for place in range(0, len(networks), PEER_NETWORKS)] or [()]
    for place, part in enumerate(parts):
        packed = b"".join(_allowed_ip(one) for one in part)
        nested = attribute(PEER_ALLOWEDIPS | NLA_F_NESTED, packed) if part else b""
        yield attribute(
            NLA_F_NESTED, (head if place == 0 else key) + nested + (tail if place == len(parts) - 1 else b"")
        )


def _allowed_ip(network: Network) -> bytes:
    family = AF_INET if network.version == 4 else AF_INET6
    return attribute(
        NLA_F_NESTED,
        attribute(ALLOWEDIP_FAMILY, struct.pack("=H", family))
        + attribute(ALLOWEDIP_IPADDR, network.network_address.packed)
        + attribute(ALLOWEDIP_CIDR_MASK, bytes((network.prefixlen,))),
    )


def _endpoint(endpoint: Endpoint) -> bytes:
    address, port = endpoint
    raw_port = port.to_bytes(2, "big")
    if address.version == 4:
        return _SOCKADDR4.pack(AF_INET, raw_port, address.packed)
    return _SOCKADDR6.pack(AF_INET6, raw_port, 0, address.packed, 0)


def _parse_peer(data: bytes) -> RawPeer:
    found = attributes(data)
    seconds, nanoseconds = _TIMESPEC.unpack(found.get(PEER_LAST_HANDSHAKE, bytes(16)))
    return RawPeer(
        public_key=binascii.b2a_base64(found[PEER_PUBLIC_KEY], newline=False).decode(),
        endpoint=_parse_endpoint(found.get(PEER_ENDPOINT, b"")),
        allowed_ips=_parse_allowed_ips(found.get(PEER_ALLOWEDIPS, b"")),
        keepalive=_U16.unpack_from(found.get(PEER_KEEPALIVE, b"\0\0"))[0],
        last_handshake=seconds + nanoseconds / 1e9,
        received=_U64.unpack_from(found.get(PEER_RX_BYTES, bytes(8)))[0],
        sent=_U64.unpack_from(found.get(PEER_TX_BYTES, bytes(8)))[0],
        preshared=found.get(PEER_PRESHARED_KEY, _NO_KEY) != _NO_KEY,
    )


# A Node with a thousand peers reads them every few seconds, and of each these two hardly ever change.
@lru_cache(maxsize=8192)
def _parse_endpoint(data: bytes) -> Endpoint | None:
    if len(data) < _SOCKADDR4.size:
        return None
    family = struct.unpack_from("=H", data)[0]
    port = int.from_bytes(data[2:4], "big")
    if family == AF_INET:
        return ip_address(data[4:8]), port
    return (ip_address(data[8:24]), port) if family == AF_INET6 and len(data) >= 24 else None


@lru_cache(maxsize=8192)
def _parse_allowed_ips(data: bytes) -> tuple[Network, ...]:
    return tuple(sorted((_parse_allowed_ip(one) for one in _each(data)), key=network_key))


def _parse_allowed_ip(data: bytes) -> Network:
    found = attributes(data)
    return ip_network((found[ALLOWEDIP_IPADDR], found[ALLOWEDIP_CIDR_MASK][0]))


def _each(data: bytes) -> Iterator[bytes]:
    """Return what is in each of a list of nested attributes."""
    offset = 0
    while offset + 4 <= len(data):
        length, _ = NLATTR.unpack_from(data, offset)
        if length < 4:
            return
        yield data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
