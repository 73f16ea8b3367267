"""The addresses of the leader's API server, by name or as they are written."""

from __future__ import annotations

import socket
import threading
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
