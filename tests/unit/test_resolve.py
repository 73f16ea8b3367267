"""The addresses of the leader's API server, by name or as they are written."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mcagent.controller.machinery.connection.addresses import LeaderAddresses
from tests.waiting import until


def test_an_address_in_a_url_needs_no_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPv4 and IPv6 are known at once."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("asked"))
    addresses = LeaderAddresses(lambda: None)
    assert addresses.of("https://192.0.2.1:6443") == ("192.0.2.1",)
    assert addresses.of("https://[2001:db8::1]:6443") == ("2001:db8::1",)


def test_a_name_is_looked_up_beside_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a resolver that hangs; its answer is told, and stays while there is no other."""
    go, answers, changed = threading.Event(), ["192.0.2.9", "192.0.2.8"], threading.Event()

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        assert host == "leader.example"
        go.wait(30)
        if not answers:
            raise socket.gaierror("no answer")
        return [(0, 0, 0, "", (address, 0)) for address in answers]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    addresses = LeaderAddresses(changed.set, period=0.0)
    assert addresses.of("https://leader.example:6443") == ()
    go.set()
    until(lambda: addresses.of("https://leader.example:6443") == ("192.0.2.8", "192.0.2.9"))
    assert changed.is_set()
    answers.clear()
    for _ in range(3):
        assert addresses.of("https://leader.example:6443") == ("192.0.2.8", "192.0.2.9")
    assert addresses.of("https://192.0.2.1") == ("192.0.2.1",)


class Resolver:
    """A resolver with answers, and the addresses that are known by it. `now` is the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.answers: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.changes = 0
        self.pending: list[Callable[[], None]] = []  # look-ups that have begun
        module = "mcagent.controller.machinery.connection.addresses"
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(f"{module}.Supervised", self.thread)
        monkeypatch.setattr(socket, "getaddrinfo", self.resolve)
        self.addresses = LeaderAddresses(self.changed, period=60.0)

    def thread(self, target: Callable[..., None], *, args: tuple[str, str], name: str) -> SimpleNamespace:
        """Return a thread whose work is pending once it is started."""
        assert name == "resolve"
        return SimpleNamespace(start=lambda: self.pending.append(lambda: target(*args)))

    def resolve(self, host: str, port: None, type: int) -> list[Any]:  # noqa: A002 (as the library names it)
        """Answer a look-up."""
        self.asked.append(host)
        if not self.answers.get(host):
            raise socket.gaierror("no answer")
        return [(0, type, 0, "", (address, 0)) for address in self.answers[host]]

    def changed(self) -> None:
        """Count news."""
        self.changes += 1

    def look_up(self, server: str) -> tuple[str, ...]:
        """Ask for the addresses of a server, let look-ups end, and return those that are known then."""
        self.addresses.of(server)
        while self.pending:
            self.pending.pop(0)()
        return self.addresses.of(server)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    """Give a resolver without answers."""
    return Resolver(monkeypatch)


def test_a_name_is_looked_up_once_a_minute(resolver: Resolver) -> None:
    """A change is news, and equal answers and failures are none."""
    server = "https://leader.example:6443"
    resolver.answers["leader.example"] = ["192.0.2.2", "192.0.2.1", "192.0.2.2"]
    assert resolver.look_up(server) == ("192.0.2.1", "192.0.2.2")
    assert (resolver.asked, resolver.changes) == (["leader.example"], 1)
    resolver.now += 59.0
    resolver.look_up(server)
    assert len(resolver.asked) == 1
    resolver.now += 1.0
    assert resolver.look_up(server) == ("192.0.2.1", "192.0.2.2")
    assert (len(resolver.asked), resolver.changes) == (2, 1)
    resolver.now += 60.0
    resolver.answers["leader.example"] = []
    assert resolver.look_up(server) == ("192.0.2.1", "192.0.2.2")
    resolver.now += 60.0
    resolver.answers["leader.example"] = ["192.0.2.3"]
    assert resolver.look_up(server) == ("192.0.2.3",)
    assert (len(resolver.asked), resolver.changes) == (4, 2)


def test_another_server_is_looked_up_at_once(resolver: Resolver) -> None:
    """The addresses of the one before are not taken for its own, also if they come late."""
    resolver.answers = {"one.example": ["192.0.2.1"], "two.example": ["192.0.2.2"]}
    assert resolver.look_up("https://one.example") == ("192.0.2.1",)
    assert resolver.addresses.of("https://two.example") == ()
    assert resolver.look_up("https://two.example") == ("192.0.2.2",)
    resolver.now += 60.0
    resolver.addresses.of("https://two.example")
    assert resolver.addresses.of("https://one.example") == ()
    assert len(resolver.pending) == 1  # one look-up at a time
    resolver.pending.pop(0)()
    assert resolver.addresses.of("https://one.example") == ()
    assert resolver.look_up("https://one.example") == ("192.0.2.1",)


def test_the_addresses_of_a_name_are_bounded(resolver: Resolver) -> None:
    """A resolver may have any number; the first 64 in their order are kept."""
    resolver.answers["leader.example"] = [f"192.0.2.{number}" for number in range(100, 200)]
    addresses = resolver.look_up("https://leader.example")
    assert addresses == tuple(f"192.0.2.{number}" for number in range(100, 164))
