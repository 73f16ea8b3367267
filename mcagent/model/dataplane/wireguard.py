"""WireGuard as values: the device, its peers, and what is seen of a peer.

Keys are public ones, in the base64 text of wg(8). A private key is in no value: it goes from the key file to the
device inside the backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mcagent.model.dataplane.backend import Backend
from mcagent.model.net import Address, Network

MAX_DEVICES = 4  # of a gateway
NAME_MAX = 15  # characters of a device's name (linux/if.h, IFNAMSIZ)


def device_names(name: str, count: int) -> tuple[str, ...]:
    """Return the names of so many devices: `name`, and names with greater numbers at the end.

    mc-wg0 is followed by mc-wg1, mc-wg2; a name without a number by itself with 1, 2. At most ten.
    """
    stem = name.rstrip("0123456789")
    first = int(name[len(stem) :] or "0")
    names = [name]
    for number in range(first + 1, first + count):
        text = str(number)[-NAME_MAX:]
        names.append(f"{stem[: NAME_MAX - len(text)]}{text}")
    return tuple(names)


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
    # IPv4 packets whose source has its route by another device are taken, too (rp_filter, loose mode of RFC 3704).
    # False: the namespace's setting decides.
    loose_source_check: bool = False
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
    silent: bool = False  # data is sent to it, and nothing comes back
    device: str = ""  # its name
    device_key: str = ""  # the device's own public key
    device_port: int = 0  # UDP, on which the device listens
