"""WireGuard in the agent: what of `Facts` comes from it, and who notices what no event tells.

`read_facts` is called by the loop's thread. `Watch` has a thread of its own that looks whether devices, peers, the
process of wireguard-go or the key file are other than they were, and wakes the loop. Changes nothing by itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from mcagent.model.errors import BackendError
from mcagent.model.facts import Facts
from mcagent.model.wireguard import WireGuardImplementation, WireGuardPeerStatus
from mcagent.observe.wireguard import WireGuardReport

log = logging.getLogger(__name__)

LOOK = 0.25  # seconds between looks, at least;
SHARE = 50  # and so many times what a look took


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


class WireGuard(Protocol):
    """What is asked of the backend (`mcagent.dataplane.wireguard.WireGuardBackend`)."""

    def implementation(self) -> WireGuardImplementation | None:
        """Return what encrypts, None if nothing can."""

    def keys(self) -> Pairs:
        """Return this Node's keys. Raises BackendError."""

    def statuses(self) -> Sequence[WireGuardPeerStatus]:
        """Return what each device says of its peers. Raises BackendError."""

    @property
    def restarts(self) -> int:
        """How many wireguard-go processes were started in place of one that died."""

    def disturbed(self) -> bool:
        """Tell whether something was changed by somebody. Raises BackendError."""


class FactsReader:
    """Adds what WireGuard says to facts. A key file that cannot be used is told once, and means: no key."""

    def __init__(self, backend: WireGuard) -> None:
        self._backend = backend
        self._told = ""

    def add(self, facts: Facts) -> Facts:
        """Return the facts with implementation and public keys."""
        try:
            keys = self._backend.keys()
            found = replace(
                facts,
                wireguard=self._backend.implementation(),
                wireguard_public_key=keys.current.public,
                wireguard_next_key=keys.next.public if keys.next is not None else "",
            )
        except BackendError as error:
            if str(error) != self._told:
                log.error("%s", error)
            self._told = str(error)
            return facts
        self._told = ""
        return found


class Watch:
    """Calls `suspect` when something is not as it was."""

    def __init__(self, backend: WireGuard, suspect: Callable[[], None]) -> None:
        self._backend, self._suspect = backend, suspect
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wireguard", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def _run(self) -> None:
        before: tuple[str, ...] | None = None
        pause = LOOK
        while not self._stopping.wait(pause):
            began = time.monotonic()
            try:
                keys = self._keys()
                disturbed = self._backend.disturbed()
            except BackendError as error:
                log.debug("%s", error)
                continue
            if disturbed or (before is not None and keys != before):
                self._suspect()
            before = keys
            pause = max(LOOK, SHARE * (time.monotonic() - began))

    def _keys(self) -> tuple[str, ...]:
        try:
            keys = self._backend.keys()
        except BackendError:
            return ()
        return (keys.current.public, keys.next.public if keys.next is not None else "")


def wireguard_report(backend: WireGuard) -> WireGuardReport:
    """Return what the devices say now, for pages: from any thread."""
    try:
        statuses = backend.statuses()
        return WireGuardReport(
            peers=tuple(statuses),
            key_created=backend.keys().current.created if statuses else 0.0,
            restarts=backend.restarts,
            now=time.time(),
        )
    except BackendError as error:
        log.debug("%s", error)
        return WireGuardReport(now=time.time())
