"""When a promoted key of ours is taken into use, and when the one before it is forgotten.

Owns the turn that a key waits for. Reads devices and the key file; writes only the latter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from mcagent.dataplane.wireguard_keys import Keys, KeyStore
from mcagent.dataplane.wireguard_own import OwnDevices
from mcagent.dataplane.wireguard_peers import Peers, goes_first, outlived
from mcagent.dataplane.wireguard_rekey import Rekey

log = logging.getLogger(__name__)

TURN = 5.0  # seconds that a new key of ours waits for peers that announced one, too, and go first


class KeyTurn:
    """Our own keys' turns. The caller holds the devices' lock."""

    def __init__(self, own: OwnDevices, keys: KeyStore, rekey: Rekey) -> None:
        """Remember where to look; nothing is read before the first call."""
        self._own = own
        self._keys = keys
        self._rekey = rekey
        self._waiting = ("", 0.0)  # a promoted key, and until when (monotonic) it waits for its turn

    def public_keys(self, keys: Keys, applied: Mapping[str, Peers]) -> tuple[str, str]:
        """Return the key to use and publish now, and the one announced to follow it ("": none).

        That is what the key file says, except that a key which has just been promoted waits for its turn: two that
        change in the same few milliseconds would each lose what waits for the other's answer, so of two that both
        have announced the one with the lower key goes first. `applied`: peers by device. Raises BackendError.
        """
        current, previous = keys.current.public, keys.previous
        if previous is None or not self._others_turn(previous.public, applied):
            self._waiting = ("", 0.0)
            return current, keys.next.public if keys.next is not None else ""
        if self._waiting[0] != current:
            self._waiting = (current, time.monotonic() + TURN)
        return (previous.public, current) if time.monotonic() < self._waiting[1] else (current, "")

    def _others_turn(self, ours: str, applied: Mapping[str, Peers]) -> bool:
        """Tell whether a device still has that key of ours while a peer that goes first is not done."""
        for name, peers in applied.items():
            raw = self._own.read(name) if any(peer.successor for peer in peers.values()) else None
            if raw is not None and raw.public_key == ours and goes_first(peers.values(), raw, ours):
                return True
        return False

    def retire(self) -> None:
        """Forget the key used before this one as soon as no peer can be using it. Raises BackendError."""
        keys = self._keys.load()
        if keys is None or keys.previous is None:
            return
        now = time.time()
        for name in self._own.names:
            raw = self._own.read(name)
            if raw is None or raw.public_key != keys.current.public:
                return
            # An agent that has just started does not know when it was; from now on is late enough.
            if not outlived(raw, self._rekey.changed.setdefault(name, now), now):
                return
        self._keys.drop_previous(keys.previous.public)
        log.info("forgot the WireGuard key before this one: %s", keys.previous.public)
