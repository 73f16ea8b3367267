"""Encryption as people see it, as it is published, and as the lab carries it."""

from __future__ import annotations

import argparse
import errno
import math
import os
import signal
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from devtools.traffic.exchange import carried
from devtools.waiting import wait_until
from mcagent.agent.backends import WireGuardFacts
from mcagent.agent.config import Settings
from mcagent.agent.reports.counters import wireguard_report
from mcagent.api.codec import from_json, to_json
from mcagent.api.status import DrainStatus, EncryptionStatus, Status
from mcagent.cli import wireguard
from mcagent.cli.common.signals import terminable
from mcagent.cli.drain import Target
from mcagent.cli.wireguard import our_turn, text
from mcagent.core.compile import compile_desired
from mcagent.dataplane.wireguard.backend import WireGuardBackend
from mcagent.dataplane.wireguard.keys import KeyPair, Keys, KeyStore
from mcagent.kube import publish
from mcagent.kube.publish import Publisher
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.wireguard import WireGuardImplementation, WireGuardPeerStatus
from mcagent.model.errors import BackendError, SourceError
from mcagent.model.node_state import EncryptionState
from mcagent.model.objects import Gateway, Kind, WireGuardInfo
from mcagent.model.parsing.node_key import NODE_KEY_ANNOTATION, node_key_text
from mcagent.model.plan import Desired
from mcagent.model.problem import Problem, Severity
from mcagent.observe.metrics.agent import Metrics, Sources
from mcagent.observe.metrics.wireguard import wireguard_metrics
from mcagent.observe.report import Report
from mcagent.observe.standard import metrics_text
from mcagent.observe.wireguard import WireGuardReport, encryption_of, summary_of
from tests.worlds.core_inputs import HOME, meta, snapshot
from tests.worlds.encrypted_clusters import EAST, FACTS, OWN, encrypting, key

NOW = 1_800_000_000.0


def desired(published: WireGuardInfo | None = None, **facts: Any) -> Desired:
    """Return what gateway g1 wants, with this in its Gateway object."""
    home = [
        replace(obj, wireguard=published) if isinstance(obj, Gateway) and obj.meta.name == "g1" else obj
        for obj in HOME
    ]
    return compile_desired(snapshot(*home, EAST), replace(FACTS, **facts), encrypting()).desired


def summary(published: WireGuardInfo | None = None) -> EncryptionState:
    """Return its part about encryption."""
    summary = summary_of(desired(published))
    assert summary is not None
    return summary


def status(number: int, **values: Any) -> WireGuardPeerStatus:
    """Return what the device says of the n-th peer."""
    plain = WireGuardPeerStatus(
        public_key=key(number),
        endpoint=(ip_address(f"203.0.113.{number - 10}"), 51821),
        last_handshake=NOW - 10,
        received=1000,
        sent=2000,
    )
    return replace(plain, **values)


def test_a_peer_that_never_shook_hands_is_told_with_causes() -> None:
    """State, age and the likely causes; the first is that our own key is not published."""
    report = WireGuardReport(peers=(status(11), status(12, last_handshake=0.0, received=0)), now=NOW)
    encryption = encryption_of(summary(), report)
    first, second = encryption.peers
    assert (first.state, first.handshake_age, first.causes) == ("established", 10, ())
    assert second.state == "never"
    assert "not published" in second.causes[0]
    assert any("UDP port 51821 of 203.0.113.2" in cause for cause in second.causes)
    shown = text(encryption)
    assert "NEVER" in shown
    assert "NOT PUBLISHED" in shown
    assert "Likely causes" in shown
    published = encryption_of(summary(WireGuardInfo(public_key=OWN, port=51821)), report)
    assert not any("published" in cause for cause in published.peers[1].causes)


PUBLISHED = WireGuardInfo(public_key=OWN, port=51821)
LOOKS = {"last_handshake": 0.0, "received": 0, "device_key": OWN, "device_port": 51821}
FAR = {"own_gateway": ip_address("2001:db8::1")}


@pytest.mark.parametrize(
    ("report_fields", "published", "more", "expected"),
    [
        ({}, PUBLISHED, {}, "UDP port 51821 of 203.0.113.1, or UDP port 51821 of this Node"),
        ({}, None, {}, "is not published yet"),
        ({"device_key": key(77)}, PUBLISHED, {}, f"publishes key {OWN}, the device has {key(77)}"),
        ({"device_port": 40000}, PUBLISHED, {}, "publishes UDP port 51821, the device listens on 40000"),
        ({"endpoint": None}, PUBLISHED, {}, "no endpoint of it is known"),
        (
            {"endpoint": (ip_address("203.0.113.1"), 7)},
            PUBLISHED,
            {},
            "packets go to UDP port 7; it publishes 51821",
        ),
        ({"endpoint": (ip_address("203.0.113.9"), 7)}, PUBLISHED, {}, "packets go to 203.0.113.9"),
        ({"received": 148}, PUBLISHED, {}, "its handshakes arrive here, our answers do not get there"),
        ({"sent": 0}, PUBLISHED, {}, "nothing could be sent"),
        ({"last_handshake": NOW + 900}, PUBLISHED, {}, ""),
        ({}, PUBLISHED, FAR, "reached by IPv4, this Node's gatewayIP is IPv6"),
    ],
)
def test_the_first_cause_is_the_one_that_can_be_seen_from_here(
    report_fields: dict[str, Any], published: WireGuardInfo | None, more: dict[str, Any], expected: str
) -> None:
    """What is published against what the device has, where packets go, what the counters say."""
    report = WireGuardReport(peers=(status(11, **LOOKS | report_fields), status(12)), now=NOW)
    first, second = encryption_of(replace(summary(published), **more), report).peers
    assert not second.causes
    assert (first.causes[0] if first.causes else "").find(expected) >= 0


def test_a_clock_that_was_set_back_is_told() -> None:
    """A key of this Node's that was made in the future: its handshakes are refused as replayed ones."""
    report = WireGuardReport(peers=(status(11, **LOOKS), status(12)), now=NOW, key_created=NOW + 3600)
    first, _ = encryption_of(summary(PUBLISHED), report).peers
    assert "clock is behind by 3600 s" in first.causes[0]


def test_a_gateway_that_is_not_used_is_told_with_its_reason() -> None:
    """It publishes no key, so it is no peer: its absence would say nothing."""
    problem = Problem(subject="ClusterInfoImport mc/east", path="spec", reason="NotEncrypted", message="no key")
    state = replace(summary(PUBLISHED), problems=(problem, replace(problem, severity=Severity.WARNING)))
    encryption = encryption_of(state, WireGuardReport(peers=(status(11), status(12)), now=NOW))
    assert [refusal.reason for refusal in encryption.not_used] == ["NotEncrypted"]
    assert "NotEncrypted: no key" in text(encryption)
    assert "NotEncrypted" not in text(encryption, not_used=False)


def test_a_stale_peer_and_one_that_is_missing() -> None:
    """A handshake older than a session's life, a peer that is not on the device, and some that nobody needs."""
    report = WireGuardReport(peers=(status(11, last_handshake=NOW - 500),), now=NOW)
    states = [peer.state for peer in encryption_of(summary(), report).peers]
    assert states == ["stale", "missing"]
    unneeded = encryption_of(summary(), report, {"east"}).peers
    assert [(peer.state, peer.causes) for peer in unneeded] == [("unneeded", ())] * 2


def test_a_peer_under_its_announced_key_is_the_same_peer() -> None:
    """While the device has it under the key to come, it is shown as established."""
    ends = summary().ends["east"]
    moved = replace(summary(), ends={"east": (replace(ends[0], next_public_key=key(99)),)})
    encryption = encryption_of(moved, WireGuardReport(peers=(status(99),), now=NOW))
    assert [peer.state for peer in encryption.peers] == ["established"]


def test_metrics_have_tunnels_and_no_addresses_as_labels() -> None:
    """Handshake, bytes and endpoint of each peer; what encrypts; nothing while encryption is off."""
    desired_state = desired(WireGuardInfo(public_key=OWN, port=51821))
    roams = (ip_address("198.51.100.7"), 40000)
    report = WireGuardReport(peers=(status(11), status(12, endpoint=roams)), key_created=5.0, restarts=3, now=NOW)
    metrics = Metrics()
    metrics.watch(
        Sources(
            report=lambda: Report(desired=desired_state),
            informers=list,
            ready=lambda: True,
            ports=dict,
            drops=dict,
            wireguard=lambda: report,
        )
    )
    lines = [
        line
        for line in metrics_text(metrics.registry).splitlines()
        if line.startswith(("mcagent_wireguard", "mcagent_enc"))
    ]
    assert 'mcagent_encryption_info{implementation="kernel",mode="wireGuard"} 1.0' in lines
    assert "mcagent_wireguard_key_published 1.0" in lines
    assert "mcagent_wireguard_process_restarts_total 3.0" in lines
    endpoints = [line for line in lines if line.startswith("mcagent_wireguard_peer_endpoint_configured")]
    assert sorted(line.split()[-1] for line in endpoints) == ["0.0", "1.0"]
    assert not any("203.0.113" in line or "240." in line for line in lines)


def test_devices_that_cannot_be_read_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No peer is missing then, and no counter falls to 0: Prometheus would take it for a reset."""

    def refuse(_: WireGuardBackend) -> tuple[WireGuardPeerStatus, ...]:
        raise BackendError("wireguard", "read", "device mc-wg0", "Too many open files")

    monkeypatch.setattr(WireGuardBackend, "statuses", refuse)
    backend = WireGuardBackend(devices=("mc-wg0",), keys=KeyStore(Path("/none")), run_directory=Path("/none"))
    backend._userspace.restarts = 3
    report = wireguard_report(backend)
    first, second = encryption_of(summary(), report).peers
    assert {(peer.state, peer.causes) for peer in (first, second)} == {("unknown", ())}
    assert "could not be read" in first.text
    desired_state = desired(WireGuardInfo(public_key=OWN, port=51821))
    samples = [sample for metric in wireguard_metrics(desired_state, report) for sample in metric.samples]
    names = {sample.name for sample in samples}
    assert "mcagent_wireguard_peer_sessions" not in names
    assert not any("device" in sample.labels for sample in samples)
    assert [sample.value for sample in samples if "restarts" in sample.name] == [3.0]


def test_the_keys_of_gateways_are_carried_into_the_entries_that_are_there() -> None:
    """Each entry gets its gateway's key, one without loses it; the first is for old readers, too."""
    spec = {"gatewayInfos": [{"gatewayIP": "a"}, {"gatewayIP": "b", "wireGuard": {"publicKey": "old"}}]}
    new_spec = carried(spec, {"a": {"publicKey": "x"}})
    assert new_spec["gatewayInfos"] == [{"gatewayIP": "a", "wireGuard": {"publicKey": "x"}}, {"gatewayIP": "b"}]
    assert new_spec["wireGuard"] == {"publicKey": "x"}
    assert carried({}, {}) == {"gatewayInfos": [], "wireGuard": None}


class Server:
    """What of a client the publisher uses: an API server that may refuse, or drop fields."""

    def __init__(self, *, refuse: int = 0, prunes: bool = False) -> None:
        self.requests: list[Any] = []
        self._refuse, self._prunes = refuse, prunes

    def request(self, method: str, path: str, *, body: Any, content_type: str) -> Any:
        """Take a patch."""
        self.requests.append((method, path, body))
        if len(self.requests) <= self._refuse:
            raise SourceError("refused")
        wireguard = dict(body["wireGuard"] or {})
        if self._prunes:
            wireguard = {"publicKey": wireguard["publicKey"]}
        return {
            "apiVersion": "multicluster.crd.antrea.io/v1alpha1",
            "kind": "Gateway",
            "metadata": {"name": "g1", "namespace": "mc"},
            "gatewayIP": "192.0.2.1",
            "internalIP": "192.0.2.1",
            "wireGuard": {name: value for name, value in wireguard.items() if value is not None},
        }


GATEWAY = meta(Kind.GATEWAY, "g1")
INFO = WireGuardInfo(public_key=OWN, next_public_key=key(2), port=51821)


@pytest.mark.parametrize("refused", [0, 2])
def test_a_key_is_published_until_it_is_there(refused: int) -> None:
    """By a merge patch of one field, again after a refusal; nothing more once it is seen."""
    server = Server(refuse=refused)
    publisher = Publisher(server)  # type: ignore[arg-type]
    publisher.start()
    try:
        publisher.want(GATEWAY, None, INFO)
        wait_until(lambda: len(server.requests) == 1 + refused, "the patch", timeout=10)
        publisher.want(GATEWAY, INFO, INFO)
        method, path, body = server.requests[-1]
        assert (method, path.rsplit("/", 1)[-1]) == ("PATCH", "g1")
        assert body == {"wireGuard": {"publicKey": OWN, "nextPublicKey": key(2), "port": 51821, "devices": None}}
    finally:
        publisher.stop()
    assert len(server.requests) == 1 + refused


def test_a_key_that_is_refused_is_published_after_ever_longer_waits() -> None:
    """Once written, it is written again only if it is not seen for a while."""
    publisher = Publisher(Server(refuse=2))  # type: ignore[arg-type]
    assert publisher._publish() == math.inf
    publisher.want(GATEWAY, None, INFO)
    assert [publisher._publish() for _ in range(3)] == [0.5, 1.0, 5.0]


def test_what_an_old_definition_drops_is_not_written_again_and_again() -> None:
    """The API server keeps only the key: that is as good as it gets."""
    server = Server(prunes=True)
    publisher = Publisher(server)  # type: ignore[arg-type]
    publisher.start()
    try:
        publisher.want(GATEWAY, None, INFO)
        wait_until(lambda: bool(publisher._stored), "the patch", timeout=10)
        for _ in range(3):
            publisher.want(GATEWAY, WireGuardInfo(public_key=OWN), INFO)
        assert publisher._desired is None
    finally:
        publisher.stop()
    assert len(server.requests) == 1


def test_what_an_old_definition_dropped_is_written_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator may have applied a newer one meanwhile."""
    server = Server(prunes=True)
    publisher = Publisher(server)  # type: ignore[arg-type]
    now = 1000.0
    monkeypatch.setattr(publish, "time", SimpleNamespace(monotonic=lambda: now))
    publisher.want(GATEWAY, None, INFO)
    publisher._publish()
    publisher.want(GATEWAY, WireGuardInfo(public_key=OWN), INFO)
    assert publisher._publish() == math.inf
    now += publish.DROPPED_FOR
    publisher.want(GATEWAY, WireGuardInfo(public_key=OWN), INFO)
    publisher._publish()
    assert len(server.requests) == 2


REBIND_ERROR = BackendError("wireguard", "reach", "device mc-wg0", "wireguard-go's socket: timed out")


class Backend:
    """What the agent asks of the backend: the kernel's WireGuard, without peers."""

    restarts = 0

    def implementation(self) -> WireGuardImplementation | None:
        """The kernel's."""
        return WireGuardImplementation.KERNEL

    def statuses(self) -> tuple[WireGuardPeerStatus, ...]:
        """Nothing."""
        return ()

    def ready(self) -> frozenset[tuple[str, str]]:
        """Return one peer of a further device."""
        return frozenset({("mc-wg1", OWN)})

    def __init__(self) -> None:
        pair = KeyPair(private=bytes(32), public=OWN, created=1.0)
        self.found: Keys | BackendError = Keys(current=pair)
        self.rebind_fails, self.rebinds = False, 0

    def rebind(self) -> None:
        """Bind the socket, or fail."""
        if self.rebind_fails:
            raise REBIND_ERROR
        self.rebinds += 1

    def keys(self) -> Keys:
        """Return the keys, or fail."""
        if isinstance(self.found, BackendError):
            raise self.found
        return self.found


def test_a_key_file_that_cannot_be_used_means_no_key(caplog: pytest.LogCaptureFixture) -> None:
    """It is reported once, and the facts say that nothing can be encrypted."""
    backend = Backend()
    reader = WireGuardFacts(backend)  # type: ignore[arg-type]
    assert reader.add(Facts()).wireguard_public_key == OWN
    assert reader.add(Facts()).wireguard_ready == {("mc-wg1", OWN)}
    backend.found = BackendError("wireguard", "read", "key file x", "has mode 0644", retryable=False)
    for _ in range(3):
        assert reader.add(Facts()) == Facts()
    assert [record.message for record in caplog.records].count(str(backend.found)) == 1


def test_keys_stay_while_their_file_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For lack of file descriptors, for example. Else encryption would end, and the Gateway lose its key."""
    backend, store = Backend(), KeyStore(tmp_path / "keys.json")
    backend.keys = store.ensure  # type: ignore[method-assign]
    reader = WireGuardFacts(backend)  # type: ignore[arg-type]
    facts = reader.add(Facts())
    assert facts.wireguard_public_key

    def refuse(*_args: object, **_options: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        assert reader.add(Facts(uplink_mtu=9000)) == replace(facts, uplink_mtu=9000)
        assert WireGuardFacts(backend).add(Facts()) == Facts()  # type: ignore[arg-type]
    store.path.chmod(0o644)
    assert reader.add(Facts()) == Facts()


def test_a_failed_rebind_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """Until wireguard-go has bound its socket after a change of addresses, and not again."""
    backend = Backend()
    reader = WireGuardFacts(backend)  # type: ignore[arg-type]
    before, after = (Facts(addresses=(ip_address(text),)) for text in ("192.0.2.1", "192.0.2.2"))
    reader.add(before)
    backend.rebind_fails = True
    reader.add(after)
    assert [record.message for record in caplog.records] == [str(REBIND_ERROR)]
    backend.rebind_fails = False
    for _ in range(3):
        reader.add(after)
    assert backend.rebinds == 1


@pytest.mark.parametrize(
    ("peer", "free"),
    [
        ({"publicKey": "A", "nextPublicKey": "X"}, False),
        ({"publicKey": "C", "nextPublicKey": "X"}, True),
        ({"publicKey": "A", "nextPublicKey": ""}, True),
        ({"publicKey": "A", "nextPublicKey": "X", "state": "stale"}, True),
    ],
)
def test_of_two_gateways_with_announced_keys_the_lower_goes_first(peer: dict[str, str], free: bool) -> None:
    """One that is not there is not waited for."""
    members = {"publicKey": "B", "peers": [{"state": "established"} | peer]}
    assert our_turn(from_json(EncryptionStatus, members, "the agent")) is free


class NodeServer:
    """An API server that has one Node, as far as the publisher asks it."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def request(self, method: str, path: str, *, body: Any, content_type: str) -> Any:
        """Take a patch."""
        self.requests.append((method, path, body))
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "w1", **body["metadata"]}}


def test_the_key_of_a_node_is_written_into_its_annotation_and_taken_away() -> None:
    """By a merge patch of the status, which leaves everything else as it is."""
    server = NodeServer()
    publisher = Publisher(server)  # type: ignore[arg-type]
    node = meta(Kind.NODE, "w1")
    publisher.start()
    try:
        publisher.want(node, None, INFO)
        wait_until(lambda: len(server.requests) == 1, "the patch", timeout=10)
        publisher.want(node, INFO, INFO)
        publisher.want(node, INFO, None)
        wait_until(lambda: len(server.requests) == 2, "the second patch", timeout=10)
        publisher.want(node, None, None)
    finally:
        publisher.stop()
    written = {NODE_KEY_ANNOTATION: node_key_text(INFO)}
    path = "/api/v1/nodes/w1/status"
    assert server.requests == [
        ("PATCH", path, {"metadata": {"annotations": written}}),
        ("PATCH", path, {"metadata": {"annotations": {NODE_KEY_ANNOTATION: None}}}),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_rotation_that_is_ended_takes_its_drain_back(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """By SIGTERM, or with its session; another run would take what it left for the drain of a user."""
    drains: list[bool] = []
    target = Target(name="this Node", node="n1", set=drains.append, progress=lambda _: iter(()), translated=int)
    encryption = EncryptionStatus(mode="wireGuard")
    serving = to_json(Status(drain=DrainStatus(phase="serving"), encryption=encryption))
    store = Mock()
    store.prepare_next.return_value.next.public = ""
    store.promote_next.side_effect = lambda: os.kill(os.getpid(), number)
    monkeypatch.setattr("mcagent.agent.backends.key_store", lambda _: store)
    monkeypatch.setattr(wireguard, "local_target", lambda _: target)
    monkeypatch.setattr(wireguard, "ask_agent", lambda _: serving)
    monkeypatch.setattr(wireguard, "wait_drained", lambda *_: None)
    before = signal.signal(number, lambda *_: None)
    try:
        arguments = argparse.Namespace(cancel=False, settle=0.0, timeout=0.0, grace=0.0)
        with pytest.raises(KeyboardInterrupt):
            wireguard._rotate(Settings(core=Config(node_name="n1")), arguments)
    finally:
        signal.signal(number, before)
    assert drains == [True, False]


def test_a_signal_that_is_ignored_stays_so() -> None:
    """`nohup` ignores SIGHUP so that a command survives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
