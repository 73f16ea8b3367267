"""The interface of both implementations of WireGuard: the state of a device, and changes of it.

Knows no resources and decides nothing: see `peers` and `backend`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.wireguard import WireGuardImplementation, WireGuardPeerStatus
from mcagent.model.errors import BackendError
from mcagent.model.net import Address, Network

Endpoint = tuple[Address, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPeer(WireGuardPeerStatus):
    """A peer as read from the device."""

    allowed_ips: tuple[Network, ...] = ()  # sorted by model.net.network_key
    keepalive: int = 0  # seconds
    preshared: bool = False  # has a preshared key, which the agent never sets


@dataclass(frozen=True, slots=True, kw_only=True)
class RawDevice:
    """A WireGuard device as read; without a private key `public_key` is ""."""

    private_key: bytes | None = field(default=None, repr=False)
    public_key: str = ""
    listen_port: int = 0
    fwmark: int = 0
    peers: Mapping[str, RawPeer] = field(default_factory=dict)  # by public key


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerChange:
    """A change of a peer, which is added if it does not exist; None: no change."""

    public_key: str
    remove: bool = False
    endpoint: Endpoint | None = None
    keepalive: int | None = None
    allowed_ips: tuple[Network, ...] = ()  # to add; a network of another peer moves to this one
    replace_allowed_ips: bool = False  # first remove all


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChange:
    """A change of a device, carried out in the order of the fields; None: no change."""

    private_key: bytes | None = field(default=None, repr=False)
    listen_port: int | None = None
    fwmark: int | None = None
    peers: Sequence[PeerChange] = ()


class Driver(Protocol):
    """One implementation, for one device. All methods raise BackendError; calls come from one thread at a time."""

    implementation: WireGuardImplementation
    kind: str  # of its devices, IFLA_INFO_KIND

    def available(self) -> bool:
        """Return whether this implementation can be used on this Node."""

    def create(self) -> None:
        """Create the device, down and without a key; or complete an existing one."""

    def read(self) -> RawDevice | None:
        """Read the device, which exists; None: its process does not run."""

    def write(self, change: DeviceChange) -> None:
        """Change the device. After an error a part of the change may be done."""

    def remove(self) -> None:
        """Delete the device, if it exists."""


def wireguard_error(operation: str, obj: str, reason: str, *, retryable: bool = True) -> BackendError:
    """Make the error of a WireGuard operation on an object ("device mc-wg0", "peer KEY of mc-wg0")."""
    return BackendError(Backend.WIREGUARD, operation, obj, reason, retryable=retryable)
