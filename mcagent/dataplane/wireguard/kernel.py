"""WireGuard in the kernel, through pyroute2: devices by rtnetlink, keys and peers by generic netlink.

Owns the conversion between values and pyroute2's message class. That class is used directly to change several
peers: `WireGuard.set` changes one, and moving a network from one peer to another has to be one message.

pyroute2 is imported on the first call: an agent without encryption never loads it.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

from mcagent.dataplane.netlink import links
from mcagent.dataplane.netlink.connection import family
from mcagent.dataplane.wireguard.device import change_link
from mcagent.dataplane.wireguard.driver import DeviceChange, PeerChange, RawDevice, RawPeer, wireguard_error
from mcagent.dataplane.wireguard.keys import is_key
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from mcagent.model.errors import BackendError
from mcagent.model.net import Network, network_key

DUMP_ATTEMPTS = 5  # a dump is interrupted when the device changes meanwhile
MESSAGE_PEERS = 200  # changes in one message: about 25 kB, and an attribute holds less than 64 kB
_NO_KEY = b"A" * 43 + b"="  # 32 zero bytes


class KernelDriver:
    """A WireGuard device of the kernel, in the calling thread's network namespace."""

    implementation = WireGuardImplementation.KERNEL
    kind = "wireguard"

    def __init__(self, name: str) -> None:
        """Opens nothing before the first call."""
        self._name = name

    def available(self) -> bool:
        """Return whether the kernel has WireGuard; the request makes it load the module, if there is one."""
        try:
            with _socket("find", "the kernel's WireGuard"):
                return True
        except BackendError as error:
            if error.reason == os.strerror(errno.ENOENT):
                return False
            raise

    def create(self) -> None:
        """Create the device."""
        change_link("create", self._name, [links.create_link(self._name, self.kind)])

    def read(self) -> RawDevice:
        """Read the device."""
        from pyroute2.netlink.exceptions import NetlinkDumpInterrupted

        for _ in range(DUMP_ATTEMPTS):
            with contextlib.suppress(NetlinkDumpInterrupted), _socket("read", self._about) as connection:
                return parse_device(connection.info(self._name))
        raise wireguard_error("read", self._about, "it changes faster than it can be read")

    def write(self, change: DeviceChange) -> None:
        """Change the device, in one message if it fits."""
        from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST

        for key in (peer.public_key for peer in change.peers if not is_key(peer.public_key)):
            raise wireguard_error("change", self._about, f'"{key}" is no key')  # pyroute2 would pad it
        with _socket("change", self._about) as connection:
            for message in set_messages(self._name, change):
                connection.nlm_request(message, msg_type=connection.prid, msg_flags=NLM_F_REQUEST | NLM_F_ACK)

    def remove(self) -> None:
        """Delete the device."""
        change_link("remove", self._name, [links.delete_link(self._name)])

    @property
    def _about(self) -> str:
        return f"device {self._name}"


@contextlib.contextmanager
def _socket(operation: str, about: str) -> Iterator[Any]:
    """Provide pyroute2's socket; its errors become BackendErrors (ENOENT: the kernel has no WireGuard)."""
    from pyroute2.netlink.exceptions import NetlinkDumpInterrupted, NetlinkError
    from pyroute2.netlink.generic.wireguard import AsyncWireGuard, WireGuard

    AsyncWireGuard.module_err_level = "debug"  # without the module wireguard-go is used: no error
    try:
        with WireGuard() as connection:
            yield connection
    except NetlinkDumpInterrupted:
        raise
    except (NetlinkError, OSError) as error:  # NetlinkError is not an OSError
        number = error.code if isinstance(error, NetlinkError) else error.errno
        raise wireguard_error(operation, about, os.strerror(number or errno.EIO)) from None


def parse_device(messages: Iterable[Any]) -> RawDevice:
    """Parse the answers to a dump: the first has the device's attributes; peers may be split between answers."""
    first, *further = messages
    peers: dict[str, RawPeer] = {}
    for message in (first, *further):
        for data in message.get_attr("WGDEVICE_A_PEERS") or ():
            peer = _peer(data, peers)
            peers[peer.public_key] = peer
    private = first.get_attr("WGDEVICE_A_PRIVATE_KEY")
    has_key = private not in (None, _NO_KEY)
    return RawDevice(
        private_key=base64.b64decode(private) if has_key else None,
        public_key=(first.get_attr("WGDEVICE_A_PUBLIC_KEY") or b"").decode() if has_key else "",
        listen_port=first.get_attr("WGDEVICE_A_LISTEN_PORT") or 0,
        fwmark=first.get_attr("WGDEVICE_A_FWMARK") or 0,
        peers=peers,
    )


def set_messages(name: str, change: DeviceChange) -> Iterator[Any]:
    """Make the messages of a change: one unless it is very large."""
    from pyroute2.netlink.generic.wireguard import WG_CMD_SET_DEVICE, WG_GENL_VERSION, wgmsg

    peers = [_attributes(peer) for peer in change.peers]
    for start in range(0, max(1, len(peers)), MESSAGE_PEERS):
        message = wgmsg()
        message["cmd"], message["version"] = WG_CMD_SET_DEVICE, WG_GENL_VERSION
        values: list[tuple[str, Any]] = [("IFNAME", name)]
        if start == 0:
            private = base64.b64encode(change.private_key).decode() if change.private_key is not None else None
            values += [("PRIVATE_KEY", private), ("LISTEN_PORT", change.listen_port), ("FWMARK", change.fwmark)]
        values += [("PEERS", peers[start : start + MESSAGE_PEERS] or None)]
        message["attrs"] = [(f"WGDEVICE_A_{key}", value) for key, value in values if value is not None]
        yield message


def _attributes(change: PeerChange) -> dict[str, Any]:
    from pyroute2.netlink.generic.wireguard import WGPEER_F_REMOVE_ME, WGPEER_F_REPLACE_ALLOWEDIPS

    flags = WGPEER_F_REMOVE_ME if change.remove else 0
    flags |= WGPEER_F_REPLACE_ALLOWEDIPS if change.replace_allowed_ips else 0
    values: list[tuple[str, Any]] = [("WGPEER_A_PUBLIC_KEY", change.public_key), ("WGPEER_A_FLAGS", flags)]
    if change.endpoint is not None:
        address, port = change.endpoint
        values.append(("WGPEER_A_ENDPOINT", {"addr": str(address), "port": port}))
    if change.allowed_ips:
        values.append(("WGPEER_A_ALLOWEDIPS", [_network(network) for network in change.allowed_ips]))
    if change.keepalive is not None:  # after the networks: enabling it may send at once
        values.append(("WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL", change.keepalive))
    return {"attrs": values}


def _network(network: Network) -> dict[str, Any]:
    return {
        "attrs": [
            ("WGALLOWEDIP_A_FAMILY", family(network)),
            ("WGALLOWEDIP_A_IPADDR", network.network_address.packed),
            ("WGALLOWEDIP_A_CIDR_MASK", network.prefixlen),
        ]
    }


def _peer(data: Any, parsed: Mapping[str, RawPeer]) -> RawPeer:
    """Parse a peer; the next message may have further networks of it, without other attributes."""
    key = data.get_attr("WGPEER_A_PUBLIC_KEY").decode()
    networks = [ip_network(item["addr"]) for item in data.get_attr("WGPEER_A_ALLOWEDIPS") or ()]
    if key in parsed:
        merged = sorted([*parsed[key].allowed_ips, *networks], key=network_key)
        return replace(parsed[key], allowed_ips=tuple(merged))
    endpoint = data.get_attr("WGPEER_A_ENDPOINT")
    handshake = data.get_attr("WGPEER_A_LAST_HANDSHAKE_TIME") or {"tv_sec": 0, "tv_nsec": 0}
    return RawPeer(
        public_key=key,
        endpoint=(ip_address(endpoint["addr"]), endpoint["port"]) if endpoint else None,
        allowed_ips=tuple(sorted(networks, key=network_key)),
        keepalive=data.get_attr("WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL") or 0,
        last_handshake=handshake["tv_sec"] + handshake["tv_nsec"] / 1e9,
        received=data.get_attr("WGPEER_A_RX_BYTES") or 0,
        sent=data.get_attr("WGPEER_A_TX_BYTES") or 0,
        preshared=data.get_attr("WGPEER_A_PRESHARED_KEY") not in (None, _NO_KEY),
    )
