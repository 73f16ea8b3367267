"""WireGuard as values: the device, its peers, and what is seen of a peer.

Keys are public ones, in the base64 text of wg(8). A private key is in no value: it goes from the key file to the
device inside the backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mcagent.model.dataplane.backend import Backend
from mcagent.model.net import Address, Network


class WireGuardImplementation(StrEnum):
    """What encrypts: the kernel's module, or wireguard-go in a process."""

    KERNEL = "kernel"
    USERSPACE = "userspace"  # wireguard-go with a persistent TUN device


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardDevice:
    """A WireGuard device: up, with its key, port, MTU and addresses.

    `public_key` says which key pair of the key file the device has. Changed, the device gets the other private
    key, and every peer is shaken hands with at once.
    """

    name: str
    listen_port: int  # UDP
    mtu: int  # bytes
    public_key: str
    addresses: tuple[Address, ...]  # each assigned as a /32 or /128; sorted by family, then value
    implementation: WireGuardImplementation
    fwmark: int = 0  # of the encrypted packets
    intact: bool = True  # False: a detail that no field shows was changed by another program; only `observe` tells

    backend = Backend.WIREGUARD

    @property
    def key(self) -> tuple[str, ...]:
        """Identity: the device's name. Devices sort before the peers on them."""
        return ("0wgdevice", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardPeer:
    """A peer of a device.

    `endpoint` is where to begin: WireGuard itself follows a peer that sends from elsewhere, and that is no
    difference.

    `successor` is the public key that the peer has announced to use next: the device has it, too, without allowed
    IPs, and after the first handshake under that key the backend itself moves them there. When the peer publishes
    it as its key, it is a peer like any other, and nothing is written.

    No two peers of a device may have a key, or a key to come, in common.
    """

    device: str
    public_key: str
    endpoint: tuple[Address, int]  # address and UDP port
    allowed_ips: tuple[Network, ...]  # sorted by model.net.network_key
    keepalive: int  # seconds between packets when there is nothing to send; 0: none
    successor: str = ""
    intact: bool = True  # False: a detail that no field shows was changed by another program; only `observe` tells

    backend = Backend.WIREGUARD

    @property
    def key(self) -> tuple[str, ...]:
        """Identity: device and public key."""
        return ("1wgpeer", self.device, self.public_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardPeerStatus:
    """What a device says of one of its peers at this moment."""

    public_key: str
    endpoint: tuple[Address, int] | None = None  # where the peer was last heard from, or the configured one
    last_handshake: float = 0.0  # seconds since the epoch; 0: never
    received: int = 0  # bytes
    sent: int = 0  # bytes
    device_key: str = ""  # the device's own public key
    device_port: int = 0  # UDP, on which the device listens
