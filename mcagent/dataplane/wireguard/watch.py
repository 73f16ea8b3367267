"""Wakes the loop when WireGuard's peers or the key file change, or wireguard-go dies.

There are no events for these changes, so a thread polls. `mcagent.dataplane.netlink.watch` handles events of the
device (link, addresses). The backend's `observe` reads the new state.
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

TICK = 0.25  # seconds between checks of the key file and of wireguard-go's process
# Seconds between checks while a peer may begin to use its announced key: until then its packets are lost.
AWAITING = 0.05
SHARE = 4  # least pause, as a multiple of the duration of such a check (0.1 s with a thousand peers)
PERIOD = 5.0  # seconds between checks of the peers, which take 20 to 100 ms for each device with a thousand peers
REST = 50  # least pause, as a multiple of the duration of such a check

FORMER_TABLE = "mcagent-rekey"  # of family inet, created by earlier agents; its rules have expired


class WireGuardWatch:
    """A thread that calls `wake` when devices or peers differ from those the backend last applied or observed.

    It uses the network namespace of the thread that starts it. `wake` has to return at once. The agent's own
    changes do not wake.
    """

    def __init__(self, backend: WireGuardBackend, wake: Callable[[], None], *, period: float = PERIOD) -> None:
        """`period`: seconds between checks of the peers. Starts nothing yet."""
        self._backend = backend
        self._wake = wake
        self._period = period
        self._stopping = threading.Event()
        self._thread = Supervised(self._run, name="wireguard-watch", until=self._stopping)

    def start(self) -> None:
        """Start the thread, after deleting the table of earlier agents."""
        with contextlib.suppress(OSError):
            run_nft(["-f", "-"], f"add table inet {FORMER_TABLE}\ndelete table inet {FORMER_TABLE}\n")
        self._thread.start()

    def stop(self) -> None:
        """End the thread; `wake` is not called afterwards."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        keys, process = self._keys(), self._backend.process()
        check_at = 0.0  # monotonic seconds
        while not self._stopping.wait(self._hand_over()):
            keys_before, keys = keys, self._keys()
            process_before, process = process, self._backend.process()
            check_peers = process_before not in {None, process} or time.monotonic() >= check_at
            changed = keys != keys_before
            if check_peers:
                began = time.monotonic()
                changed = self._differs() or changed
                ended = time.monotonic()
                check_at = ended + max(self._period, REST * (ended - began))
            if changed:
                self._wake()

    def _keys(self) -> tuple[str, str]:
        """Return the public keys: current and next; "" for none."""
        try:
            keys = self._backend.keys()
        except BackendError as error:
            log.debug("%s", error)  # if a key is needed, the loop reports the error
            return "", ""
        return keys.current.public, keys.next.public if keys.next is not None else ""

    def _hand_over(self) -> float:
        """Hand over peers that use their announced key. Return the pause until the next check in seconds."""
        if not self._backend.awaits_keys:
            return TICK
        began = time.monotonic()
        try:
            self._backend.hand_over()
        except BackendError as error:
            log.debug("%s", error)
        return max(AWAITING, SHARE * (time.monotonic() - began))

    def _differs(self) -> bool:
        try:
            return self._backend.differs()
        except BackendError as error:
            log.debug("%s", error)
            return True  # the loop reports the error
