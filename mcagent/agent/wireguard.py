"""WireGuard in the agent: what of `Facts` comes from it, and what pages show of it. Changes nothing.

That somebody changed a device, a peer or the key file is noticed by `mcagent.dataplane.wireguard.watch`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from mcagent.model.errors import BackendError
from mcagent.model.facts import Facts
from mcagent.model.net import Address
from mcagent.observe.wireguard import WireGuardReport

if TYPE_CHECKING:
    from mcagent.dataplane.wireguard.backend import WireGuardBackend

log = logging.getLogger(__name__)


class FactsReader:
    """Adds what WireGuard says to facts. A key file that cannot be used is reported once, and means: no key.

    Where the Node's addresses changed, wireguard-go is made to forget the one by which it sent.
    """

    def __init__(self, backend: WireGuardBackend) -> None:
        self._backend = backend
        self._reported = ""
        self._addresses: tuple[Address, ...] | None = None

    def add(self, facts: Facts) -> Facts:
        """Return the facts with implementation and public keys."""
        self._see_addresses(facts.addresses)
        try:
            keys = self._backend.keys()
            found = replace(
                facts,
                wireguard=self._backend.own.implementation(),
                wireguard_public_key=keys.current.public,
                wireguard_next_key=keys.next.public if keys.next is not None else "",
            )
        except BackendError as error:
            if str(error) != self._reported:
                log.error("%s", error)
            self._reported = str(error)
            return facts
        self._reported = ""
        return found

    def _see_addresses(self, addresses: tuple[Address, ...]) -> None:
        before, self._addresses = self._addresses, addresses
        if before not in {None, addresses}:
            try:
                self._backend.own.bind_again()
            except BackendError as error:
                log.warning("%s", error)


def wireguard_report(backend: WireGuardBackend) -> WireGuardReport:
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
