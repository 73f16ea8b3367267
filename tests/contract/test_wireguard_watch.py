"""Who changes our WireGuard device is noticed; we ourselves are not."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devtools.nodes import netns
from mcagent.dataplane.wireguard.watch import TICK, WireGuardWatch
from mcagent.model.dataplane.wireguard import WireGuardImplementation
from tests.contract.inside import make, steps_to
from tests.contract.wireguard_nodes import KEYS, WireGuardNode, missing, peer, resources
from tests.waiting import allowed

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

PERIOD = 0.3  # seconds; 5 in the agent


@pytest.fixture(params=list(WireGuardImplementation))
def node(request: pytest.FixtureRequest, fresh_namespace: str, tmp_path: Path) -> Iterator[WireGuardNode]:
    """Give a Node with a device and two peers, for each implementation that there is here."""
    reason = missing(request.param)
    if reason:
        pytest.skip(reason)
    node = WireGuardNode(1, fresh_namespace, tmp_path, WireGuardImplementation(request.param))
    make(node.backend, resources(node, peer(node, 0), peer(node, 1)))
    yield node
    node.close()


class Woken:
    """Counts, and waits for, calls of `wake`."""

    def __init__(self, node: WireGuardNode, period: float) -> None:
        self._called = threading.Event()
        self.watch = WireGuardWatch(node.wireguard, self._called.set, period=period)
        netns.call(node.namespace, self.watch.start)

    def within(self, seconds: float) -> bool:
        """Tell whether it is called within that time."""
        return self._called.wait(seconds)

    def forget(self) -> None:
        """Begin again."""
        self._called.clear()


@pytest.fixture
def watching() -> Iterator[Callable[[WireGuardNode, float], Woken]]:
    """Give what starts a watch, which ends with the test."""
    started: list[Woken] = []

    def start(node: WireGuardNode, period: float) -> Woken:
        started.append(Woken(node, period))
        return started[-1]

    yield start
    for watched in started:
        watched.watch.stop()


Start = Callable[[WireGuardNode, float], Woken]


@pytest.mark.parametrize(
    "words",
    [
        ["link", "set", "DEVICE", "down"],
        ["link", "set", "DEVICE", "mtu", "1300"],
        ["address", "flush", "dev", "DEVICE"],
        ["link", "delete", "DEVICE"],
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_a_change_of_the_device_wakes_with_the_next_look(
    node: WireGuardNode, watching: Start, words: list[str]
) -> None:
    """The kernel's events of it are the netlink monitor's; this is the periodic look."""
    woken = watching(node, PERIOD)
    netns.ip(node.namespace, *(node.device if word == "DEVICE" else word for word in words))
    assert woken.within(PERIOD + 2.0)


def test_a_change_of_peers_wakes_with_the_next_look(node: WireGuardNode, watching: Start) -> None:
    """No event tells of peers, so they are looked at from time to time."""
    woken = watching(node, PERIOD)
    assert not woken.within(3 * PERIOD)
    node.wg("set", "peer", KEYS[0], "remove")
    assert woken.within(PERIOD + 2.0)


def test_another_key_in_the_key_file_wakes(node: WireGuardNode, watching: Start) -> None:
    """`mcagent wireguard rotate` is another process: what it writes is seen within a moment."""
    woken = watching(node, 3600.0)
    assert not woken.within(3 * TICK)
    for change in (node.store.prepare_next, node.store.promote_next):
        woken.forget()
        change()
        assert woken.within(TICK + 2.0)


def test_our_own_changes_do_not_wake(node: WireGuardNode, watching: Start) -> None:
    """What the backend applied is what is expected from then on."""
    woken = watching(node, PERIOD)
    make(node.backend, [node.value(mtu=1300), peer(node, 2)])
    make(node.backend, resources(node, peer(node, 0, keepalive=7), peer(node, 1)))
    # Events of a change that is not complete may wake; nothing does once it is.
    woken.forget()
    assert not woken.within(3 * PERIOD)


@pytest.mark.timing
def test_the_end_of_wireguard_go_wakes_at_once(node: WireGuardNode, watching: Start) -> None:
    """Of the first process, and of the one that took its place."""
    if node.implementation is not WireGuardImplementation.USERSPACE:
        pytest.skip("the kernel's WireGuard does not end")
    woken = watching(node, 3600.0)
    for _ in range(2):
        process = netns.call(node.namespace, node.wireguard.process)
        assert process is not None
        os.kill(process, signal.SIGKILL)
        began = time.monotonic()
        assert woken.within(2.0)
        assert time.monotonic() - began < allowed(1.0)
        wanted = resources(node, peer(node, 0), peer(node, 1))
        while node.backend.apply(steps_to(node.backend.observe(), wanted)).failed:
            assert time.monotonic() - began < allowed(5.0), "the pause before a second start is half a second"
            time.sleep(0.05)
        woken.forget()
        assert not woken.within(2 * TICK), "the process that we started is no surprise"
