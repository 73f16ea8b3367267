"""Probes through tunnels: frames, what is concluded from answers and losses, who is asked how often."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.waiting import wait_until
from flows.pipeline.registers import MAC_ANSWER
from mcagent.agent.tunnel_probes import TunnelProbes
from mcagent.core import tunnel_probes as probes
from mcagent.core.failover.liveness import LivenessCause, Observation, PeerLiveness
from mcagent.core.tunnel_probes import ProbeState, is_probe, probe_frame, read_answer, with_answer, with_loss
from mcagent.model.dataplane.resources import PeerKind, TunnelPort
from mcagent.model.net import cluster_fingerprint
from tests.worlds.core_inputs import tunnel_port

TOKENS = st.binary(min_size=8, max_size=8)
WORKING = with_answer(ProbeState(mtu=1400), 0.02, full=False)


def reflected(probe: bytes, cluster: str = "") -> bytes:
    """Return what the bridge at the other end makes of a probe; `cluster`: of a version with fingerprints."""
    source = cluster_fingerprint(cluster).to_bytes(6) if cluster else probe[6:12]
    return MAC_ANSWER.to_bytes(6) + source + probe[12:]


def lose(state: ProbeState, times: int, *, full: bool = False, bfd_up: bool = True) -> ProbeState:
    """Return what is known after so many losses."""
    for _ in range(times):
        state = with_loss(state, full=full, bfd_up=bfd_up)
    return state


@given(TOKENS, st.sampled_from([0, 1446, 8950]), st.integers(64, 10000))
def test_an_answer_has_the_token_of_its_probe(token: bytes, mtu: int, handed: int) -> None:
    """Whatever its size, and however little of it the agent is handed; a probe itself is no answer."""
    sent = probe_frame(token, mtu)
    assert len(sent) == max(60, mtu + 14)
    assert read_answer(reflected(sent)[:handed]) == (token, None)
    assert read_answer(reflected(sent, "east")[:handed]) == (token, cluster_fingerprint("east"))
    assert read_answer(sent) is None
    assert is_probe(sent)


@given(st.binary(max_size=100))
def test_nothing_else_is_an_answer(noise: bytes) -> None:
    """Whatever comes, no exception does."""
    assert read_answer(noise) is None
    assert read_answer(reflected(probe_frame(bytes(8)))[:20]) is None
    assert is_probe(noise) == (noise[12:14] == b"\x88\xb6")


def test_who_never_answers_has_lost_nothing() -> None:
    """Antrea's gateways, and older versions."""
    silent = lose(ProbeState(), 100)
    assert (silent.answers, silent.sent, silent.lost, silent.loss) == (False, 0, 0, None)
    assert lose(ProbeState(), 1).answers is None
    assert with_answer(silent, 0.01, full=False).answers


def test_round_trips_and_losses_are_counted() -> None:
    """As a histogram since the start, and as median and part of the last ones."""
    state = ProbeState()
    for seconds in (0.02, 0.03, 0.9):
        state = with_answer(state, seconds, full=False)
    state = lose(state, 1)
    assert (state.sent, state.lost, state.loss, state.round_trip) == (4, 1, 0.25, 0.03)
    assert state.buckets()[-1] == ("+Inf", 3.0)
    assert dict(state.buckets())["0.025"] == 1.0
    assert state.total == pytest.approx(0.95)
    assert len(lose(state, 3 * probes.KEPT, bfd_up=False).recent) == probes.KEPT


def test_who_ceases_to_answer_while_bfd_goes_on_answers_no_more() -> None:
    """A peer that was downgraded loses nothing; where BFD is lost, too, it is loss."""
    assert lose(WORKING, probes.GIVEN_UP - 1).loss is not None
    given_up = lose(WORKING, 10 * probes.GIVEN_UP)
    assert (given_up.answers, given_up.loss) == (False, None)
    assert given_up.lost == probes.GIVEN_UP - 1
    assert lose(WORKING, 100, bfd_up=False).lost == 100


def test_only_large_packets_that_are_lost_again_and_again_mean_a_narrow_path() -> None:
    """Not while small ones are lost as well; one that passes, or another MTU, ends it."""
    narrow = lose(WORKING, probes.FULL_LOST, full=True)
    assert (lose(WORKING, probes.FULL_LOST - 1, full=True).full, narrow.full) == (None, False)
    assert narrow.lost == 0
    assert lose(lose(WORKING, 2, bfd_up=False), 5, full=True).full is None
    assert with_answer(narrow, 0.02, full=True).full
    assert probes.with_size(narrow, 1300).full is None
    assert probes.with_size(narrow, 1400) is narrow


def test_a_node_sends_fifty_a_second_at_most() -> None:
    """With 1,000 tunnels each is probed every 20 seconds; by the largest packets rarely, but in doubt."""
    assert probes.probe_period(3) == 1.0
    assert probes.probe_period(1000) == 20.0
    passing = with_answer(WORKING, 0.02, full=True)
    assert probes.full_probe_period(WORKING, 1.0) == 1.0
    assert probes.full_probe_period(passing, 1.0) == probes.FULL_EVERY
    assert probes.full_probe_period(lose(passing, 1, full=True), 1.0) == 1.0
    assert probes.full_probe_period(lose(passing, 5, full=True), 1.0) == probes.FULL_LOST_EVERY


def test_tunnels_of_one_period_are_probed_at_the_same_times() -> None:
    """Whenever each was probed first; a time that is a multiple of the period is not due again at once."""
    assert {probes.next_probe(now, 1.0) for now in (7.0, 7.3, 7.999)} == {8.0}
    assert probes.next_probe(99.0, 20.0) == 100.0


ANSWERING = Observation(port="mc-3", group="", bfd=True, state="up", forwarding=True)


class Wire:
    """Answers probes by the ports in `answering`, at once."""

    def __init__(self) -> None:
        self.answering: set[int] = set()
        self.cluster = ""  # that answers
        self.answered: list[Mapping[str, ProbeState]] = []  # the results at each notification
        self.sent: list[tuple[int, bytes]] = []
        self.batches = 0
        self.changed = threading.Event()
        self.passed = 0.0  # seconds by which the clock is ahead
        self.probes = TunnelProbes(
            send=self.send,
            clock=lambda: time.monotonic() + self.passed,
            changed=self.changed.set,
            answered=lambda: self.answered.append(self.probes.report()),
        )

    def send(self, frames: Sequence[tuple[int, bytes]]) -> None:
        """Take what is sent."""
        self.sent += frames
        self.batches += 1
        for port, found in frames:
            if port in self.answering:
                self.probes.receive(port, reflected(found, self.cluster))


def peers(ports: Sequence[TunnelPort]) -> Mapping[str, PeerLiveness]:
    """Return peers that are all live."""
    return {
        one.name: PeerLiveness(
            port=one.name, group="", live=True, cause=LivenessCause.BFD, text="", since=0.0, seen=True
        )
        for one in ports
    }


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe five times as often."""
    monkeypatch.setattr(probes, "EVERY", 0.2)


@pytest.mark.usefixtures("often")
def test_who_answers_is_reported_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the fingerprint in the answer; a gateway that did not answer is probed at once when BFD comes up."""
    monkeypatch.setattr(probes, "TIMEOUT", 0.2)
    wire = Wire()
    ports = (tunnel_port(3, "east", PeerKind.REMOTE),)
    wire.probes.update(ports, {}, 0)
    wire.probes.start()
    try:
        wait_until(
            lambda: wire.probes.report().get("mc-3", ProbeState()).answers is False, "no answer", timeout=20
        )
        wire.answering, wire.cluster = {3}, "west"
        wire.probes.update(ports, {"mc-3": replace(peers(ports)["mc-3"], last=ANSWERING)}, 0)
        wait_until(lambda: len(wire.answered) == 1, "the first answer", timeout=10)
        wire.cluster = "east"
        wait_until(lambda: len(wire.answered) == 2, "an answer of another cluster", timeout=10)
    finally:
        wire.probes.stop()
    fingerprints = [results["mc-3"].answered_by for results in wire.answered]
    assert fingerprints == [cluster_fingerprint("west"), cluster_fingerprint("east")]


@pytest.mark.usefixtures("often")
def test_only_gateways_of_other_clusters_are_probed() -> None:
    """Answers count once, and only by the tunnel that was asked; the largest packets are tried, too."""
    wire = Wire()
    ports = (tunnel_port(2, "worker", PeerKind.NODE), *(tunnel_port(n, "east", PeerKind.REMOTE) for n in (3, 4)))
    wire.answering = {3}
    wire.probes.update(ports, peers(ports), 1400)
    wire.probes.start()
    try:
        wait_until(lambda: {port for port, _ in wire.sent} == {3, 4}, "probes", timeout=10)
        wait_until(lambda: any(len(found) == 1414 for _, found in wire.sent), "a large one", timeout=10)
    finally:
        wire.probes.stop()
    report = wire.probes.report()
    assert set(report) == {"mc-3"}  # of the other nothing is known yet
    assert report["mc-3"].full
    for port, found in wire.sent:
        wire.probes.receive(port, reflected(found) if port == 3 else found)
        wire.probes.receive(3, reflected(found))
    assert wire.probes.report() == report


@pytest.mark.usefixtures("often")
def test_all_tunnels_are_probed_in_one_batch() -> None:
    """Each batch wakes the agent, ovs-vswitchd and the peers: one each time for three tunnels, not three."""
    wire = Wire()
    numbers = range(3, 6)
    ports = tuple(tunnel_port(number, "east", PeerKind.REMOTE) for number in numbers)
    wire.answering = set(numbers)
    wire.probes.update(ports, peers(ports), 0)
    wire.probes.start()
    try:
        wait_until(lambda: len(wire.sent) >= 4 * len(ports), "four probes of each", timeout=20)
    finally:
        wire.probes.stop()
    assert {port for port, _ in wire.sent} == set(numbers)
    assert wire.batches <= 6


@pytest.mark.usefixtures("often")
def test_what_was_sent_before_the_first_answer_is_not_lost() -> None:
    """The other end may just have begun to answer."""
    wire = Wire()
    ports = (tunnel_port(3, "east", PeerKind.REMOTE),)
    wire.probes.update(ports, peers(ports), 1400)
    wire.probes.start()
    try:
        wait_until(lambda: len(wire.sent) == 2, "probes that nobody answers", timeout=10)
        wire.answering = {3}
        wait_until(lambda: (wire.probes.report().get("mc-3") or ProbeState()).sent >= 3, "answers", timeout=15)
    finally:
        wire.probes.stop()
    assert wire.probes.report()["mc-3"].lost == 0


def test_a_tunnel_that_bfd_loses_is_examined() -> None:
    """By probes in quick succession, which count as nothing else; the result is announced when it is complete."""
    wire = Wire()
    ports = (tunnel_port(3, "east", PeerKind.REMOTE),)
    up = {"mc-3": replace(peers(ports)["mc-3"], last=ANSWERING)}
    wire.answering = {3}
    wire.probes.update(ports, up, 0)
    wire.probes.start()

    def result() -> ProbeState:
        return wire.probes.report().get("mc-3") or ProbeState()

    try:
        wait_until(lambda: result().answers, "an answer", timeout=10)
        wire.probes.update(ports, peers(ports), 0)
        assert result().examined is None  # it was just up
        wire.probes.update(ports, up, 0)
        wire.passed = probes.EXAMINED_AFTER
        wait_until(lambda: result().sent >= 2, "another answer", timeout=10)
        sent, usual = len(wire.sent), result().sent
        wire.changed.clear()
        wire.answering = set()
        wire.probes.update(ports, peers(ports), 0)
        wait_until(lambda: len(wire.sent) >= sent + 5, "probes that are lost", timeout=10)
        wire.answering = {3}
        assert wire.changed.wait(20)
    finally:
        wire.probes.stop()
    examined = result().examined
    assert examined is not None
    assert examined.complete
    answered = [bool(is_answered) for _, is_answered in examined.results]
    assert answered == sorted(answered)  # lost first, then answered
    assert 3 <= answered.count(False) <= len(answered) - 3
    times = [at for at, _ in examined.results]
    assert times == sorted(times)
    assert times[-1] >= (probes.EXAMINED - 1) * probes.EXAMINED_EVERY * 0.9
    assert len(wire.sent) - sent == probes.EXAMINED + result().sent - usual


def test_when_all_tunnels_are_lost_only_some_are_examined() -> None:
    """That is no false alarm, and the probes of a thousand tunnels would be many."""
    wire = Wire()
    numbers = range(3, 2 * probes.EXAMINED_AT_ONCE)
    ports = tuple(tunnel_port(number, "east", PeerKind.REMOTE) for number in numbers)
    up = {name: replace(peer, last=ANSWERING) for name, peer in peers(ports).items()}
    wire.answering = set(numbers)
    wire.probes.update(ports, up, 0)
    wire.probes.start()
    try:
        wait_until(lambda: len(wire.probes.report()) == len(ports), "answers", timeout=20)
        wire.passed = probes.EXAMINED_AFTER
        wire.probes.update(ports, peers(ports), 0)
        examined = [state for state in wire.probes.report().values() if state.examined is not None]
    finally:
        wire.probes.stop()
    assert len(examined) == probes.EXAMINED_AT_ONCE


def test_a_late_result_of_an_earlier_examination_is_ignored() -> None:
    """A tunnel may be lost again before the first examination is complete."""
    first, examines = probes.with_examination(replace(WORKING, examined=probes.Examination(began=1.0)), 1.5)
    assert examines == (1.0, 0)
    assert first.examined is not None
    assert first.examined.results == ((0.5, None),)
    second, _ = probes.with_examination(replace(first, examined=probes.Examination(began=2.0)), 2.0)
    assert probes.with_examined(second, *examines, answered=True) == second


def test_who_switches_probes_off_sends_none() -> None:
    """tunnelProbes: false."""
    off = TunnelProbes(send=lambda _: pytest.fail("sent"), on=False)
    ports = (tunnel_port(3, "east", PeerKind.REMOTE),)
    off.start()
    assert off.update(ports, peers(ports), 1400) == frozenset()
    off.stop()
    assert off.report() == {}
