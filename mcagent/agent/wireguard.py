"""WireGuard in the agent: what of `Facts` comes from it, and what pages show of it. Changes nothing.

That somebody changed a device, a peer or the key file is noticed by `mcagent.dataplane.wireguard_watch`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from mcagent.model.errors import BackendError
from mcagent.model.facts import Facts
from mcagent.model.wireguard import WireGuardImplementation, WireGuardPeerStatus
from mcagent.observe.wireguard import WireGuardReport

log = logging.getLogger(__name__)


class Pair(Protocol):
    """A key pair (`mcagent.dataplane.wireguard_keys.KeyPair`)."""

    @property
    def public(self) -> str:
        """Base64 text."""

    @property
    def created(self) -> float:
        """Seconds since the epoch."""


class Pairs(Protocol):
    """This Node's key pairs (`mcagent.dataplane.wireguard_keys.Keys`)."""

    @property
    def current(self) -> Pair:
        """The one in use."""

    @property
    def next(self) -> Pair | None:
        """The one that follows."""


class Devices(Protocol):
    """What is asked of this Node's WireGuard devices (`mcagent.dataplane.wireguard_own.OwnDevices`)."""

    def implementation(self) -> WireGuardImplementation | None:
        """Return what encrypts, None if nothing can."""

    def statuses(self) -> Sequence[WireGuardPeerStatus]:
        """Return what each device says of its peers. Raises BackendError."""

    @property
    def restarts(self) -> int:
        """How many wireguard-go processes were started in place of one that died."""


class WireGuard(Protocol):
    """What is asked of the backend (`mcagent.dataplane.wireguard.WireGuardBackend`)."""

    @property
    def own(self) -> Devices:
        """The devices that are ours."""

    def keys(self) -> Pairs:
        """Return this Node's keys. Raises BackendError."""

    def public_keys(self) -> tuple[str, str]:
        """Return the key to use now, and the one to announce ("": none). Raises BackendError."""


class FactsReader:
    """Adds what WireGuard says to facts. A key file that cannot be used is told once, and means: no key."""

    def __init__(self, backend: WireGuard) -> None:
        self._backend = backend
        self._told = ""

    def add(self, facts: Facts) -> Facts:
        """Return the facts with implementation and public keys."""
        try:
            public_key, next_key = self._backend.public_keys()
            found = replace(
                facts,
                wireguard=self._backend.own.implementation(),
                wireguard_public_key=public_key,
                wireguard_next_key=next_key,
            )
        except BackendError as error:
            if str(error) != self._told:
                log.error("%s", error)
            self._told = str(error)
            return facts
        self._told = ""
        return found


def wireguard_report(backend: WireGuard) -> WireGuardReport:
    """Return what the devices say now, for pages: from any thread."""
    try:
        statuses = backend.own.statuses()
        return WireGuardReport(
            peers=tuple(statuses),
            key_created=backend.keys().current.created if statuses else 0.0,
            restarts=backend.own.restarts,
            now=time.time(),
        )
    except BackendError as error:
        log.debug("%s", error)
        return WireGuardReport(now=time.time())
