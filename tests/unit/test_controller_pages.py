"""What the controller's pages and metrics show, from an engine whose state is set by values."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from mcagent.controller.config import ControllerSettings
from mcagent.controller.contract.member_tokens import TokenClaims, anchor_name
from mcagent.controller.machinery.apply import DroppedValue, Verb, Write
from mcagent.controller.machinery.engine import Engine
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Leader,
    ObjectChange,
    Ref,
    Side,
    View,
)
from mcagent.controller.machinery.serving.metrics import registry
from mcagent.controller.machinery.serving.pages import Process, checks, make_pages, status_of
from mcagent.controller.machinery.serving.servers import Servers
from mcagent.controller.machinery.statistics import RESULTS, Durations
from mcagent.core.health import HealthReason
from mcagent.http.listening import Authentication
from mcagent.http.server import Page
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.model.api.base import Metadata
from mcagent.model.api.kubernetes import ApiService
from mcagent.model.informer_state import InformerState
from mcagent.model.objects import Kind
from mcagent.observe.version import version

SERVICE = Ref(kind=Kind.SERVICE, namespace="shop", name="web")
IMPORT = Ref(side=Side.LEADER, kind=Kind.RESOURCE_IMPORT, namespace="area", name="web")
LEADER = Leader(
    cluster_set="blue",
    cluster_id="east",
    leader_cluster_id="north",
    namespace="area",
    addresses=("192.0.2.1",),
    connected=True,
    synced=True,
    since=1_700_000_000.0,
)


class Services:
    """Reads Services, and imports of the leader."""

    name = "services"
    needs_leader = False
    reads = Access(local={Kind.SERVICE, Kind.LABEL_IDENTITY}, leader={Kind.RESOURCE_IMPORT})
    writes = Access(local={Kind.SERVICE})
    indexes = ()

    def keys(self, change: ObjectChange, view: View) -> Sequence[str]:
        """Return none."""
        return ()

    def all_keys(self, view: View) -> Sequence[str]:
        """Return none."""
        return ()

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return nothing."""
        return DesiredObjects()


class ValueEngine(Engine):
    """An engine that was not started; a test sets the state of its informers, and its counts of keys."""

    def __init__(self, *, member: bool) -> None:
        client = Client(token_kubeconfig("https://127.0.0.1:1", b"", "none"))
        super().__init__([Services()], client, namespace="kube-system", member=member)
        self.states: dict[Side, list[InformerState]] = {Side.LOCAL: [], Side.LEADER: []}
        self.counts = (0, 0)
        self.numbers = {"services": 0}

    def informers(self) -> Mapping[Side, Sequence[InformerState]]:
        """Return what the test has set."""
        return self.states

    def waiting(self) -> tuple[int, int]:
        """Return what the test has set."""
        return self.counts

    def depths(self) -> Mapping[str, int]:
        """Return what the test has set."""
        return self.numbers

    def set_leader(self, leader: Leader | None) -> None:
        """Have this membership."""
        assert self.connection is not None
        self.connection.leader = leader

    def list_all(self) -> None:
        """Have all local kinds listed: one Service, and of the others none."""
        service = ApiService(metadata=Metadata(name="web", namespace="shop", resource_version="1"))
        for kind in self.cache.kinds(Side.LOCAL):
            self.cache.replace(Side.LOCAL, kind, [service] if kind is Kind.SERVICE else [])


def process_of(engine: Engine, **fields: Any) -> Process:
    """Return a process in which all is well."""
    defaults: dict[str, Any] = {
        "role": "member",
        "identity": "pod-1",
        "namespace": "kube-system",
        "started_at": 1_700_000_000.0,
        "engine": engine,
        "leading": lambda: True,
        "holder": lambda: "pod-1",
        "lease_error": lambda: "",
        "webhook": lambda: "",
        "dead": list,
        "reviews": lambda: {("Service", "allowed"): 2},
        "review_durations": lambda: Durations([1] * 15, 3.0),
        "certificate_expiry": lambda: 1_800_000_000.0,
        "events": lambda: {"written": 3, "failed": 1},
        "unhealthy": lambda: {HealthReason.DEGRADED: 1},
    }
    return Process(**defaults | fields)


def texts(process: Process) -> dict[str, str | None]:
    """Return the texts of the conditions of being ready; None: the condition holds."""
    results = checks(process)
    assert all(not check.text for check in results if check.good)
    return {check.name: None if check.good else check.text for check in results}


def test_a_process_is_ready_when_all_is_listed_connected_and_served() -> None:
    """Conditions that do not hold say why, by kind; kinds that are not listed are sorted."""
    engine = ValueEngine(member=False)
    engine.states[Side.LOCAL] = [InformerState(kind=Kind.SERVICE, error="not allowed")]
    process = process_of(engine, webhook=lambda: "no certificate")
    assert list(texts(process)) == ["listed", "connected", "webhook"]
    assert texts(process) == {
        "listed": "not listed yet: LabelIdentity; Service: not allowed",
        "connected": None,  # what was not listed is not reported twice
        "webhook": "no certificate",
    }
    assert not process.ready()
    engine.list_all()
    process = process_of(engine)
    assert texts(process) == {"listed": None, "connected": None, "webhook": None}
    assert process.ready()


def test_a_watch_that_is_down_is_reported_unless_the_kind_is_optional() -> None:
    """With the error, or without one."""
    engine = ValueEngine(member=False)
    engine.list_all()
    engine.states[Side.LOCAL] = [
        InformerState(kind=Kind.SERVICE, synced=True, error="connection refused"),
        InformerState(kind=Kind.NODE, synced=True),
        InformerState(kind=Kind.SECRET, synced=True, connected=True),
        InformerState(kind=Kind.LABEL_IDENTITY, synced=True),
    ]
    process = process_of(engine)
    text = "Service: connection refused; Node: not connected"
    assert texts(process) == {"listed": None, "connected": text, "webhook": None}
    assert not process.ready()


def test_a_leader_that_is_away_does_not_matter_for_being_ready() -> None:
    """With another Pod nothing would be better."""
    engine = ValueEngine(member=True)
    engine.list_all()
    engine.states[Side.LEADER] = [InformerState(kind=Kind.RESOURCE_IMPORT, synced=True, error="away")]
    assert process_of(engine).ready()


def test_the_status_of_a_process() -> None:
    """Its role, Lease, leader, queue, refused and contended objects, dropped fields, and informers."""
    engine = ValueEngine(member=True)
    engine.list_all()
    engine.set_leader(LEADER)
    engine.counts, engine.numbers = (3, 2), {"services": 7, "a": 1}
    state = InformerState(kind=Kind.SERVICE, synced=True, connected=True, lists=1, restarts={"closed": 2})
    engine.states[Side.LOCAL] = [state]
    engine.states[Side.LEADER] = [InformerState(kind=Kind.RESOURCE_IMPORT)]
    engine.written.failed(IMPORT, "quota")
    engine.written.failed(SERVICE, "denied")
    for _ in range(4):
        engine.written.count(Write(verb=Verb.PATCH, ref=SERVICE, body={}), 0.0)
    value = DroppedValue(sent="1", stored=None, fields=("spec.new",))
    engine.written.add_dropped(IMPORT, {("spec", "new"): value}, {"metadata": {}}, 0, 0.0)
    process = process_of(engine, leading=lambda: False, holder=lambda: "pod-2", lease_error=lambda: "HTTP 500")
    shown = json.loads(json.dumps(status_of(process)))
    informers = shown.pop("informers")
    assert shown == {
        "version": version(),
        "role": "member",
        "identity": "pod-1",
        "namespace": "kube-system",
        "startedAt": "2023-11-14T22:13:20Z",
        "ready": True,
        "alive": True,
        "checks": [
            {"name": "listed", "good": True, "text": ""},
            {"name": "connected", "good": True, "text": ""},
            {"name": "webhook", "good": True, "text": ""},
        ],
        "lease": {"held": False, "holder": "pod-2", "error": "HTTP 500"},
        "leader": {
            "cluster_set": "blue",
            "cluster_id": "east",
            "leader_cluster_id": "north",
            "namespace": "area",
            "addresses": ["192.0.2.1"],
            "connected": True,
            "synced": True,
            "error": "",
            "since": "2023-11-14T22:13:20Z",
            "token": None,
            "token_error": "",
        },
        "reconcilers": {"a": {"waiting": 1}, "services": {"waiting": 7}},
        "delayed": 3,
        "active": 2,
        "refused": [
            {"object": "ResourceImport area/web (leader)", "reason": "quota"},
            {"object": "Service shop/web", "reason": "denied"},
        ],
        "contended": [{"object": "Service shop/web", "writes": 4}],
        "notKept": {"leader": ["ResourceImport spec.new"]},
    }
    assert list(shown["reconcilers"]) == ["a", "services"]
    assert [(entry["side"], entry["kind"], entry["objects"]) for entry in informers] == [
        ("local", "Service", 1),
        ("leader", "ResourceImport", 0),
    ]
    assert (informers[0]["lists"], informers[0]["restarts"]) == (1, {"closed": 2})


def test_the_status_of_a_process_that_is_not_well() -> None:
    """Neither ready nor alive, without a leader, or with one that was never connected."""
    engine = ValueEngine(member=True)
    process = process_of(engine, dead=lambda: ["engine"], webhook=lambda: "no certificate")
    shown = status_of(process)
    assert (shown["ready"], shown["alive"], shown["leader"]) == (False, False, None)
    assert (shown["refused"], shown["contended"], shown["notKept"]) == ([], [], {})
    engine.set_leader(Leader(cluster_set="b", cluster_id="e", leader_cluster_id="n", namespace="a"))
    leader = status_of(process)["leader"]
    assert isinstance(leader, dict)
    assert leader["since"] is None


def test_lists_of_objects_are_bounded() -> None:
    """At most a thousand of each, so that a page of a broken cluster can be read."""
    engine = ValueEngine(member=False)
    for number in range(1001):
        ref = Ref(kind=Kind.SERVICE, namespace="shop", name=f"s{number:04}")
        engine.written.failed(ref, "denied")
        for _ in range(3):
            engine.written.count(Write(verb=Verb.PATCH, ref=ref, body={}), 0.0)
    shown = status_of(process_of(engine))
    for name in ("refused", "contended"):
        entries = shown[name]
        assert isinstance(entries, list)
        assert len(entries) == 1000
        assert entries[-1]["object"] == "Service shop/s0999"


def test_pages_are_made_of_the_process() -> None:
    """Health names threads that do not run, readiness each condition; all are read at each request."""
    engine = ValueEngine(member=False)
    dead: list[str] = []
    process = process_of(engine, dead=lambda: dead)
    pages: Mapping[str, Any] = make_pages(process, registry(process))
    assert (pages["/healthz"]().status, pages["/healthz"]().body) == (200, "ok\n")
    dead.append("engine")
    assert (pages["/healthz"]().status, pages["/healthz"]().body) == (503, "not running: engine\n")
    assert pages["/readyz"]().status == 503
    assert "[-] listed: not listed yet: LabelIdentity; Service\n" in pages["/readyz"]().body
    assert json.loads(pages["/status"]().body)["identity"] == "pod-1"
    assert "mcagent_controller_ready 0.0" in pages["/metrics"]().body
    engine.list_all()
    assert pages["/readyz"]().status == 200
    assert "mcagent_controller_ready 1.0" in pages["/metrics"]().body


def samples(process: Process) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values of metrics by name without prefix, and by the values of their labels, in order."""
    result: dict[str, dict[tuple[str, ...], float]] = {}
    for family in registry(process).collect():
        for sample in family.samples:
            name = sample.name.removeprefix("mcagent_controller_")
            result.setdefault(name, {})[tuple(sample.labels.values())] = sample.value
    return result


def test_labels_of_metrics() -> None:
    """By them dashboards and alerts select time series."""
    engine = ValueEngine(member=True)
    state = InformerState(kind=Kind.SERVICE, restarts={"closed": 1})
    engine.states[Side.LOCAL] = [state]
    statistics = engine.worker.statistics
    statistics.worked("services", "changed", 0.0)
    statistics.wrote("services", Write(verb=Verb.PATCH, ref=IMPORT, body={}))
    statistics.requested(Side.LEADER, "patch", "ok")
    process = process_of(engine, members=lambda: {"ready": 1})
    labels = {
        family.name.removeprefix("mcagent_controller_"): {
            label for sample in family.samples for label in sample.labels
        }
        for family in registry(process).collect()
    }
    assert {name: names for name, names in labels.items() if names} == {
        "mcagent_build_info": {"version"},
        "events": {"result"},
        "unhealthy_clusters": {"reason"},
        "members": {"state"},
        "queue_depth": {"reconciler"},
        "reconciles": {"reconciler", "result"},
        "reconcile_duration_seconds": {"reconciler", "le"},
        "writes": {"reconciler", "side", "kind", "verb"},
        "api_requests": {"side", "verb", "code"},
        "objects": {"side", "kind"},
        "informer_connected": {"side", "kind"},
        "informer_events": {"side", "kind"},
        "informer_restarts": {"side", "kind", "reason"},
        "webhook_requests": {"kind", "answer"},
        "webhook_duration_seconds": {"le"},
    }


def test_metrics_of_keys_writes_and_requests() -> None:
    """Every result has a time series from the start; counts are those of the statistics."""
    engine = ValueEngine(member=False)
    engine.counts, engine.numbers = (3, 2), {"services": 7, "a": 1}
    statistics = engine.worker.statistics
    statistics.worked("services", "changed", 0.0002)
    statistics.worked("services", "failed", 20.0)
    statistics.wrote("services", Write(verb=Verb.PATCH, ref=IMPORT, body={}))
    statistics.requested(Side.LEADER, "patch", "ok")
    statistics.requested(Side.LOCAL, "get", "404")
    engine.written.failed(IMPORT, "quota")
    for _ in range(3):
        engine.written.count(Write(verb=Verb.PATCH, ref=SERVICE, body={}), 0.0)
    shown = samples(process_of(engine))
    assert shown["queue_depth"] == {("services",): 7.0, ("a",): 1.0}
    assert (shown["queue_delayed"], shown["queue_active"]) == ({(): 3.0}, {(): 2.0})
    reconciles = shown["reconciles_total"]
    assert sorted(reconciles) == sorted((name, result) for name in ("a", "services") for result in RESULTS)
    assert {labels: value for labels, value in reconciles.items() if value} == {
        ("services", "changed"): 1.0,
        ("services", "failed"): 1.0,
    }
    buckets = shown["reconcile_duration_seconds_bucket"]
    assert buckets["services", "0.0005"] == buckets["services", "10.0"] == 1.0
    assert buckets["services", "+Inf"] == 2.0
    assert shown["reconcile_duration_seconds_sum"] == {("services",): 20.0002}
    assert shown["writes_total"] == {("services", "leader", "ResourceImport", "patch"): 1.0}
    assert shown["api_requests_total"] == {("leader", "patch", "ok"): 1.0, ("local", "get", "404"): 1.0}
    assert (shown["refused_objects"], shown["contended_objects"]) == ({(): 1.0}, {(): 1.0})


def test_metrics_of_the_process() -> None:
    """The Lease, Events, clusters that are not healthy, members, and the webhook."""
    engine = ValueEngine(member=False)
    process = process_of(engine, members=lambda: {"ready": 4, "away": 1})
    shown = samples(process)
    assert shown["is_leader"] == {(): 1.0}
    assert shown["events_total"] == {("failed",): 1.0, ("written",): 3.0}
    assert shown["members"] == {("away",): 1.0, ("ready",): 4.0}
    unhealthy = shown["unhealthy_clusters"]
    assert len(unhealthy) == len(HealthReason)
    assert {labels for labels, value in unhealthy.items() if value} == {(str(HealthReason.DEGRADED),)}
    assert shown["webhook_requests_total"] == {("Service", "allowed"): 2.0}
    assert shown["webhook_duration_seconds_sum"] == {(): 3.0}
    assert shown["webhook_duration_seconds_bucket"]["+Inf",] == 15.0
    assert shown["webhook_certificate_expiry_timestamp_seconds"] == {(): 1_800_000_000.0}
    without = samples(process_of(engine, leading=lambda: False))
    assert without["is_leader"] == {(): 0.0}
    assert "members" not in without
    assert "leader_connected" not in without


def token_metrics(engine: ValueEngine, **fields: Any) -> tuple[float, ...]:
    """Return the metrics of the leader: connected, since, expiry and renewal of the token."""
    leader = {name: getattr(LEADER, name) for name in Leader.__slots__} | fields
    engine.set_leader(Leader(**leader))
    shown = samples(process_of(engine))
    names = (
        "connected",
        "changed_timestamp_seconds",
        "token_expiry_timestamp_seconds",
        "token_renewal_timestamp_seconds",
    )
    return tuple(shown[f"leader_{name}"][()] for name in names)


def test_metrics_of_the_leader() -> None:
    """Zero without a leader or a token; a token that is not renewed has the time at which its end is reported."""
    engine = ValueEngine(member=True)
    shown = samples(process_of(engine))
    assert shown["leader_connected"] == shown["leader_changed_timestamp_seconds"] == {(): 0.0}
    assert token_metrics(engine) == (1.0, 1_700_000_000.0, 0.0, 0.0)
    assert token_metrics(engine, connected=False, since=5.0) == (0.0, 5.0, 0.0, 0.0)
    times: dict[str, Any] = {"issued": 1000.0, "expires": 1600.0}
    bound = TokenClaims(**times, namespace="area", account="east", anchor=anchor_name("east", 3600, "a" * 20))
    assert token_metrics(engine, token=bound)[2:] == pytest.approx((1600.0, 1400.0))
    foreign = TokenClaims(**times, namespace="area", account="east")
    assert token_metrics(engine, token=foreign)[2:] == (1600.0, 1500.0)


def test_metrics_of_informers() -> None:
    """By side and kind; restarts also by reason."""
    engine = ValueEngine(member=True)
    engine.list_all()
    engine.states[Side.LOCAL] = [
        InformerState(kind=Kind.SERVICE, connected=True, events=9, restarts={"closed": 2, "bad-line": 1})
    ]
    engine.states[Side.LEADER] = [InformerState(kind=Kind.RESOURCE_IMPORT, events=4)]
    shown = samples(process_of(engine))
    service, imported = ("local", "Service"), ("leader", "ResourceImport")
    assert shown["objects"] == {service: 1.0, imported: 0.0}
    assert shown["informer_connected"] == {service: 1.0, imported: 0.0}
    assert shown["informer_events_total"] == {service: 9.0, imported: 4.0}
    assert shown["informer_restarts_total"] == {(*service, "bad-line"): 1.0, (*service, "closed"): 2.0}


PAGES: Mapping[str, Any] = {
    "/healthz": lambda: Page(body="fine\n"),
    "/readyz": lambda: Page(body="secret of a cluster\n", status=503),
    "/metrics": lambda: Page(body="metrics\n"),
}


def answers(port: int) -> dict[str, tuple[int, str]]:
    """Return status and text of each page at a port of this machine."""
    result = {}
    for path in PAGES:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        result[path] = answer.status, answer.read().decode()
        connection.close()
    return result


@pytest.fixture
def serve() -> Iterator[Callable[..., Servers]]:
    """Give a function that starts servers; they are closed at the end."""
    client = Client(token_kubeconfig("https://127.0.0.1:1", b"", "none"))
    with ExitStack() as opened:

        def start(**settings: Any) -> Servers:
            servers = Servers(ControllerSettings(**settings), PAGES, client)
            opened.callback(servers.close)
            return servers

        yield start


ALL = {"/healthz": (200, "fine\n"), "/readyz": (503, "secret of a cluster\n"), "/metrics": (200, "metrics\n")}


def test_on_the_loopback_one_server_has_all_pages(serve: Callable[..., Servers]) -> None:
    """With a second address metrics and status are there, too, without health."""
    servers = serve(listen="127.0.0.1:0", metrics_listen="0")
    assert answers(servers.port) == ALL
    assert servers.pages_port == servers.port
    servers = serve(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
    assert answers(servers.port) == ALL
    assert servers.pages_port != servers.port
    of_pages = answers(servers.pages_port)
    assert of_pages["/metrics"] == (200, "metrics\n")
    assert (of_pages["/healthz"][0], of_pages["/readyz"][0]) == (404, 404)


def test_on_other_addresses_health_has_no_reasons(serve: Callable[..., Servers]) -> None:
    """And nothing else is served there."""
    of_health = answers(serve(listen="0.0.0.0:0", metrics_listen="0").port)
    assert of_health["/healthz"] == (200, "ok\n")
    assert of_health["/readyz"] == (503, "not ok: see /status or the log\n")
    assert of_health["/metrics"][0] == 404


def test_pages_without_authentication_are_served_to_the_names_given(serve: Callable[..., Servers]) -> None:
    """On other addresses a token is required, unless the settings say otherwise."""
    servers = serve(
        listen="127.0.0.1:0",
        metrics_listen="0.0.0.0:0",
        metrics_authentication=Authentication.NONE,
        metrics_host_names=("controller.example",),
    )
    for host, status in (("controller.example", 200), ("evil.example", 421)):
        connection = http.client.HTTPConnection("127.0.0.1", servers.pages_port, timeout=30)
        connection.request("GET", "/metrics", headers={"Host": host})
        assert connection.getresponse().status == status
        connection.close()


def test_an_address_that_cannot_be_had_frees_the_other(serve: Callable[..., Servers]) -> None:
    """A restart finds both free."""
    servers = serve(listen="127.0.0.1:0", metrics_listen="0")
    listen = f"127.0.0.1:{servers.port}"
    servers.close()
    other = serve(listen="127.0.0.1:0", metrics_listen="0")
    with pytest.raises(OSError, match="cannot listen on"):
        serve(listen=listen, metrics_listen=f"127.0.0.1:{other.port}")
    assert answers(serve(listen=listen, metrics_listen="0").port) == ALL
