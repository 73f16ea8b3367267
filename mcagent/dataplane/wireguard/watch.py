"""Wakes the loop when WireGuard's peers or the key file change, or wireguard-go dies.

No event tells of any of these, so a thread looks from time to time. Events of the device itself (link, addresses)
are `mcagent.dataplane.netlink.watch`'s. What is wrong, the backend's `observe` says.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from mcagent.dataplane.nft.observe import run_nft
from mcagent.dataplane.wireguard.backend import WireGuardBackend
from mcagent.model.errors import BackendError
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

TICK = 0.25  # seconds between looks at the key file and at the processes of wireguard-go
# Seconds between looks while a peer may begin to use the key it announced: what it sends in between is lost.
AWAITING = 0.05
SHARE = 4  # times as long as such a look took is waited at least: with a thousand peers it takes 0.1 s
PERIOD = 5.0  # seconds between looks at the peers: of a thousand, one takes 20 to 100 ms

FORMER_TABLE = "mcagent-rekey"  # of family inet: an earlier agent's, whose rules have ended by themselves


class WireGuardWatch:
    """A thread that calls `wake` when the devices are not what the backend last made or saw of them.

    It lives in the network namespace of who starts it. `wake` has to return at once. Our own changes do not wake.
    """

    def __init__(self, backend: WireGuardBackend, wake: Callable[[], None], *, period: float = PERIOD) -> None:
        """Remember whom to ask and to wake; nothing runs yet."""
        self._backend = backend
        self._wake = wake
        self._period = period
        self._stopping = threading.Event()
        self._thread = Supervised(self._run, name="wireguard-watch", until=self._stopping)

    def start(self) -> None:
        """Start watching."""
        with contextlib.suppress(OSError):
            run_nft(["-f", "-"], f"add table inet {FORMER_TABLE}\ndelete table inet {FORMER_TABLE}\n")
        self._thread.start()

    def stop(self) -> None:
        """End the thread; `wake` is not called any more afterwards."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        keys, process = self._keys(), self._backend.process()
        look_at = 0.0  # monotonic seconds
        while not self._stopping.wait(self._hand_over()):
            keys_before, keys = keys, self._keys()
            process_before, process = process, self._backend.process()
            look = process_before not in {None, process} or time.monotonic() >= look_at
            if look:
                look_at = time.monotonic() + self._period
            if keys != keys_before or (look and self._different()):
                self._wake()

    def _keys(self) -> tuple[str, str]:
        """Return the public key in use, and the next; "" for none."""
        try:
            keys = self._backend.keys()
        except BackendError as error:
            log.debug("%s", error)  # where a key is needed, the loop reports what is wrong
            return "", ""
        return keys.current.public, keys.next.public if keys.next is not None else ""

    def _hand_over(self) -> float:
        """See to peers that have announced a key. Return when to look again, in seconds."""
        if not self._backend.awaits_keys:
            return TICK
        began = time.monotonic()
        try:
            self._backend.hand_over()
        except BackendError as error:
            log.debug("%s", error)
        return max(AWAITING, SHARE * (time.monotonic() - began))

    def _different(self) -> bool:
        try:
            return self._backend.disturbed()
        except BackendError as error:
            log.debug("%s", error)
            return True  # the loop reports what is wrong
