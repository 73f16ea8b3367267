"""What both implementations of WireGuard have in common: what a device says, and what is asked of it.

No resources and no decisions here: see `peers` for these, and `backend`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mcagent.model.errors import BackendError
from mcagent.model.net import Address, Network
from mcagent.model.resources import Backend
from mcagent.model.wireguard import WireGuardImplementation, WireGuardPeerStatus

Endpoint = tuple[Address, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPeer(WireGuardPeerStatus):
    """A peer as the device has it."""

    allowed_ips: tuple[Network, ...] = ()  # sorted by model.net.network_key
    keepalive: int = 0  # seconds
    preshared: bool = False  # has a preshared key: none that we make has


@dataclass(frozen=True, slots=True, kw_only=True)
class RawDevice:
    """A WireGuard device as it says itself; without a private key `public_key` is ""."""

    private_key: bytes | None = field(default=None, repr=False)
    public_key: str = ""
    listen_port: int = 0
    fwmark: int = 0
    peers: Mapping[str, RawPeer] = field(default_factory=dict)  # by public key


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerChange:
    """What to change of a peer, which is made if there is none; None leaves a thing as it is."""

    public_key: str
    remove: bool = False
    endpoint: Endpoint | None = None
    keepalive: int | None = None
    allowed_ips: tuple[Network, ...] = ()  # to add; a network that another peer has moves at once
    replace_allowed_ips: bool = False  # first take away all that it has


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChange:
    """What to change of a device, in this order; None leaves a thing as it is."""

    private_key: bytes | None = field(default=None, repr=False)
    listen_port: int | None = None
    fwmark: int | None = None
    peers: Sequence[PeerChange] = ()


class Driver(Protocol):
    """One implementation, for one device. All methods raise BackendError; calls come from one thread at a time."""

    implementation: WireGuardImplementation
    kind: str  # of its devices, IFLA_INFO_KIND

    def available(self) -> bool:
        """Tell whether this implementation can be used here."""
        ...

    def create(self) -> None:
        """Make the device, down and without a key; or what is missing of one that is there."""
        ...

    def read(self) -> RawDevice | None:
        """Return what the device, which exists, says; None where nothing runs that could say it."""
        ...

    def write(self, change: DeviceChange) -> None:
        """Change the device. What was done before an error stays done."""
        ...

    def remove(self) -> None:
        """Take the device away, if it is there."""
        ...


def wireguard_error(operation: str, obj: str, reason: str, *, retryable: bool = True) -> BackendError:
    """Return the error of a WireGuard operation on an object ("device mc-wg0", "peer KEY of mc-wg0")."""
    return BackendError(Backend.WIREGUARD, operation, obj, reason, retryable=retryable)
