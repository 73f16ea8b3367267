"""How often the watch reads WireGuard's devices."""

from __future__ import annotations

import threading
import time

import pytest

from devtools.waiting import wait_until
from mcagent.dataplane.wireguard import watch
from mcagent.dataplane.wireguard.keys import KeyPair, Keys
from mcagent.dataplane.wireguard.watch import WireGuardWatch

PERIOD = 0.01  # seconds


class Backend:
    """A backend without announced keys, whose devices take their time."""

    awaits_keys = False

    def __init__(self, duration: float) -> None:
        self._duration = duration
        self.checks: list[tuple[float, float]] = []  # begin and end, monotonic seconds

    def keys(self) -> Keys:
        """Return keys that stay."""
        return Keys(current=KeyPair(private=bytes(32), public="own", created=1.0))

    def process(self) -> int | None:
        """Return no process of wireguard-go."""
        return None

    def differs(self) -> bool:
        """Take some time, and find a difference."""
        began = time.monotonic()
        time.sleep(self._duration)
        self.checks.append((began, time.monotonic()))
        return True


@pytest.mark.parametrize("duration", [0.0, 0.01])
def test_devices_that_take_long_are_read_less_often(monkeypatch: pytest.MonkeyPatch, duration: float) -> None:
    """The pause is fifty times the duration, and no less than the period."""
    monkeypatch.setattr(watch, "TICK", 0.002)
    monkeypatch.setattr(watch, "run_nft", lambda *_: None)
    backend, woken = Backend(duration), threading.Event()
    watching = WireGuardWatch(backend, woken.set, period=PERIOD)  # type: ignore[arg-type]
    watching.start()
    try:
        wait_until(lambda: len(backend.checks) >= 3, "three checks", timeout=20)
    finally:
        watching.stop()
    assert woken.is_set()
    for (began, ended), (following, _) in zip(backend.checks, backend.checks[1:], strict=False):
        assert following - ended >= max(PERIOD, 0.9 * watch.REST * (ended - began) * bool(duration))
