"""Names of several WireGuard devices, and which peers are in a session."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcagent.dataplane.wireguard.driver import RawPeer
from mcagent.dataplane.wireguard.peers import SESSION, Exchange, exchanges_after, live_peers, silent_peers
from mcagent.model.dataplane.wireguard import MAX_DEVICES, NAME_MAX, WireGuardPeer, device_names
from mcagent.model.net import parse_address

NOW = 1_000_000.0
PEER = WireGuardPeer(
    device="mc-wg1", public_key="a", endpoint=(parse_address("192.0.2.1"), 51821), allowed_ips=(), keepalive=5
)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("mc-wg0", ("mc-wg0", "mc-wg1", "mc-wg2", "mc-wg3")),
        ("mc-wg8", ("mc-wg8", "mc-wg9", "mc-wg10", "mc-wg11")),
        ("vpn", ("vpn", "vpn1", "vpn2", "vpn3")),
        ("abcdefghijklmno", ("abcdefghijklmno", "abcdefghijklmn1", "abcdefghijklmn2", "abcdefghijklmn3")),
        ("abcdefghijklm99", ("abcdefghijklm99", "abcdefghijkl100", "abcdefghijkl101", "abcdefghijkl102")),
    ],
)
def test_names_count_up(name: str, names: tuple[str, ...]) -> None:
    """From the number at the end; a name that is full loses characters before it."""
    assert device_names(name, MAX_DEVICES) == names
    assert device_names(name, 1) == (name,)


@given(st.from_regex(rf"[a-z0-9_-]{{1,{NAME_MAX}}}", fullmatch=True))
@example("9" * NAME_MAX)
@example("aaaaaaaaaaaa1z9")
@example("wg007")
def test_names_are_distinct_and_names_of_devices(name: str) -> None:
    """Whatever the first one is."""
    names = device_names(name, MAX_DEVICES)
    assert names[0] == name
    assert len(set(names)) == MAX_DEVICES
    assert all(1 <= len(one) <= NAME_MAX for one in names)


def test_a_peer_is_live_by_its_last_handshake() -> None:
    """Younger than a session; none, and one in the future, do not count."""
    ages = {"a": 0.0, "b": SESSION - 1, "c": SESSION, "d": NOW, "e": -5.0}
    raw = {key: RawPeer(public_key=key, last_handshake=NOW - age) for key, age in ages.items()}
    assert live_peers(raw, {}, NOW) == {"a", "b"}


def test_a_peer_that_uses_its_announced_key_is_live_under_both() -> None:
    """Until it publishes that key, core knows it by the former one."""
    raw = {"new": RawPeer(public_key="new", last_handshake=NOW - 1)}
    applied = {"a": replace(PEER, successor="new"), "b": replace(PEER, public_key="b")}
    assert live_peers(raw, applied, NOW) == {"a", "new"}


def test_a_peer_that_does_not_answer_data_is_missing() -> None:
    """Data without any answer for 20 s; keepalives are no data, an answer in time is no loss, and one ends it."""
    exchanges: dict[str, Exchange] = {}

    def at(seconds: float, received: int, sent: int) -> bool:
        nonlocal exchanges
        raw = {"key": RawPeer(public_key="key", received=received, sent=sent)}
        exchanges = exchanges_after(exchanges, raw, seconds)
        return "key" in silent_peers(exchanges, seconds)

    assert not at(0, received=100, sent=5000)
    assert not at(5, received=100, sent=9000)
    assert not at(24, received=100, sent=9000)  # an answer may still come
    assert at(26, received=100, sent=9000)
    assert not at(27, received=132, sent=9500)
    assert not at(150, received=132, sent=9500 + 9 * 32 + 148)  # keepalives and a handshake: no data
    assert not at(151, received=132, sent=9500 + 1000)  # data begins after a long silence
    assert not at(170, received=132, sent=9500 + 1000)
    assert at(172, received=132, sent=9500 + 1000)
    assert not at(173, received=164, sent=9500 + 1000)
    exchanges = exchanges_after(exchanges, {}, 174)  # removed: another peer of that key begins anew
    assert not at(300, received=164, sent=99_999)


@pytest.mark.parametrize("keepalive", [1, 15])
def test_keepalives_are_no_data(keepalive: int) -> None:
    """A peer that gets them answers at the next handshake only, after two minutes."""
    exchanges: dict[str, Exchange] = {}
    for seconds in range(0, 121, 5):
        sent = seconds // keepalive * 32 + 148
        raw = {"key": RawPeer(public_key="key", received=100, sent=sent, keepalive=keepalive)}
        exchanges = exchanges_after(exchanges, raw, seconds)
        assert not silent_peers(exchanges, seconds)


def reading(received: int, sent: int, keepalive: int = 0) -> dict[str, RawPeer]:
    """Return the counters of one peer."""
    return {"key": RawPeer(public_key="key", received=received, sent=sent, keepalive=keepalive)}


def test_an_exchange_begins_with_the_first_reading() -> None:
    """Bytes that were sent before do not count, and each answer begins it anew."""
    first = exchanges_after({}, reading(0, 9000), 10.0)
    assert first == {"key": Exchange(received=0, at=10.0, sent=9000)}
    assert exchanges_after(first, reading(0, 9999), 11.0) == first
    waiting = exchanges_after(first, reading(0, 10_000), 12.0)
    assert waiting == {"key": Exchange(received=0, at=10.0, sent=9000, unanswered_since=12.0)}
    assert exchanges_after(waiting, reading(0, 20_000), 13.0) == waiting
    assert exchanges_after({}, reading(1, 9000), 10.0) == {"key": Exchange(received=1, at=10.0, sent=9000)}
    answered = exchanges_after(waiting, reading(32, 20_000), 14.0)
    assert answered == {"key": Exchange(received=32, at=14.0, sent=20_000)}


def test_keepalives_since_the_last_answer_are_subtracted() -> None:
    """32 bytes for each; of a peer without them nothing is."""
    first = exchanges_after({}, reading(1, 0, keepalive=5), 0.0)
    for sent, unanswered_since in ((1000 + 32 * 10 - 1, None), (1000 + 32 * 10, 50.0)):
        after = exchanges_after(first, reading(1, sent, keepalive=5), 50.0)
        assert after["key"].unanswered_since == unanswered_since
    assert exchanges_after(first, reading(1, 1000), 50.0)["key"].unanswered_since == 50.0


def test_a_peer_is_silent_after_more_than_twenty_seconds() -> None:
    """From when data was first unanswered."""
    exchanges = {
        "a": Exchange(received=0, at=0.0, sent=0, unanswered_since=100.0),
        "b": Exchange(received=0, at=0.0, sent=0, unanswered_since=101.0),
        "c": Exchange(received=0, at=0.0, sent=0),
    }
    assert silent_peers(exchanges, 120.0) == frozenset()
    assert silent_peers(exchanges, 121.0) == {"a"}
    assert silent_peers(exchanges, 1000.0) == {"a", "b"}
