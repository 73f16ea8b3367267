"""One key at a time, without an engine: what is written to an API server, and what follows from its answers."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer, Fault, FaultKind
from mcagent.controller.machinery.apply import Verb
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.connection.connection import AwayError
from mcagent.controller.machinery.current_events import CurrentEvents
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    ObjectChange,
    Ref,
    Refusal,
    Side,
    View,
    Wanted,
)
from mcagent.controller.machinery.statistics import Statistics
from mcagent.controller.machinery.view import EngineView
from mcagent.controller.machinery.worker import Worker
from mcagent.controller.machinery.workqueue import WorkQueue
from mcagent.controller.machinery.writer import ConflictError, NotLeadingError, Writer
from mcagent.controller.machinery.written import WrittenObjects
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiGarbageError, ApiRefusalError, ApiUnreachableError
from mcagent.model.api.base import ApiObject, Condition
from mcagent.model.api.kubernetes import ConfigMap
from mcagent.model.api.patches import patch
from mcagent.model.backoff import Backoff
from mcagent.model.event import Event
from mcagent.model.objects import Kind
from tests.embedded.controlworld import NAMESPACE, Objects, client_of
from tests.worlds.memory_objects import content_patch, typed

REF = Ref(kind=Kind.CONFIG_MAP, namespace=NAMESPACE, name="x")
SECOND = Ref(kind=Kind.CONFIG_MAP, namespace=NAMESPACE, name="y")
EXPORT = Ref(kind=Kind.SERVICE_EXPORT, namespace=NAMESPACE, name="x")
PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
EXPORTS = f"/apis/multicluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/serviceexports"
ENTRY = ("maps", "x")
READY = Condition(type="Ready", status="True", reason="Done", message="ok")


class World:
    """An API server, and a writer and a worker of it. `kinds` are those that are watched."""

    def __init__(self, api: ApiServer, client: Client, kinds: Sequence[Kind] = ()) -> None:
        self.api, self.objects, self.client = api, Objects(api), client
        self.cache = Cache({Side.LOCAL: kinds, Side.LEADER: ()})
        self.written = WrittenObjects(self.cache)
        self.statistics = Statistics()
        self.permit = math.inf
        self.events = CurrentEvents()
        self.reconciler = Maps()
        self.is_open = True
        self.now = 0.0
        self.queue = WorkQueue(Backoff(first=1.0, most=64.0, jitter=0.0), clock=lambda: self.now)
        view = EngineView(self.cache, NAMESPACE, None, self.written, self.events)
        self.worker = Worker(
            {"maps": self.reconciler},
            client=client,
            written=self.written,
            events=self.events,
            views={"maps": view},
            connection=None,
            gate=lambda _reconciler: self.is_open,
            permit=lambda: self.permit,
            clock=lambda: 5.0,
        )

    def writer(self) -> Writer:
        """Return a writer."""
        return Writer(self.client, None, 0, lambda: self.permit, statistics=self.statistics, written=self.written)

    def write(self, step: Wanted | Ref, present: ApiObject | None) -> list[Verb]:
        """Write one step over what is thought to be present; return the kinds of the writes."""
        writer = self.writer()
        first = writer.plan(step, present)
        assert first is not None
        return [write.verb for write in writer.carry_out(step, present, first)]

    def present(self, ref: Ref = REF) -> ApiObject:
        """Return an object as the API server has it."""
        obj = self.writer().present(ref)
        assert obj is not None
        return obj

    def data(self, name: str = "x") -> Any:
        """Return the data of a ConfigMap; None: there is none."""
        stored = self.objects.get(Kind.CONFIG_MAP, name)
        return stored and stored["data"]

    def work(self) -> bool:
        """Work on the key; return whether that went well."""
        return self.worker.work(ENTRY, self.queue)

    def results(self) -> dict[str, int]:
        """Return how often which result was counted."""
        return {result: count for (_, result), count in self.worker.statistics.results().items()}

    def again(self) -> list[tuple[str, str]]:
        """Return the keys that are to be worked on now."""
        entries = []
        while not self.queue.idle():
            entry = self.queue.take()
            assert entry is not None
            entries.append(entry)
            self.queue.done(entry)
        return entries


class Maps:
    """Wants what it is told to."""

    name = "maps"
    needs_leader = False
    reads = Access(local={Kind.CONFIG_MAP})
    writes = Access(local={Kind.CONFIG_MAP}, leader={Kind.CONFIG_MAP})
    indexes = ()

    def __init__(self) -> None:
        self.desires = DesiredObjects()
        self.calls: list[tuple[str, float]] = []

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return none."""
        return ()

    def all_keys(self, view: View) -> Iterable[str]:
        """Return none."""
        return ()

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return what it is told to."""
        self.calls.append((key, now))
        return self.desires


def wanted(ref: Ref = REF, **data: str) -> Wanted:
    """Return a ConfigMap with this data."""
    return Wanted(ref=ref, body=patch(ConfigMap, data=data))


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """Give an API server."""
    with ApiServer() as server:
        yield server


@pytest.fixture
def world(api: ApiServer, tmp_path: Path) -> World:
    """Give a world in which nothing is watched."""
    return World(api, client_of(api, tmp_path))


@pytest.fixture
def watched(api: ApiServer, tmp_path: Path) -> World:
    """Give a world that watches ConfigMaps; none was listed."""
    return World(api, client_of(api, tmp_path), [Kind.CONFIG_MAP])


# --- the writer ---------------------------------------------------------------------------------------------


def test_content_and_status_are_written_by_requests_of_their_own(world: World) -> None:
    """An object is created, then its status is patched through the subresource; each request is counted."""
    step = Wanted(ref=EXPORT, body=content_patch(metadata={"labels": {"a": "1"}}), conditions={"Ready": READY})
    assert world.write(step, None) == [Verb.CREATE, Verb.STATUS]
    assert world.objects.writes() == [f"create {EXPORTS}", f"patch {EXPORTS}/x/status"]
    stored = world.objects.get(Kind.SERVICE_EXPORT, "x")
    assert stored["metadata"]["labels"] == {"a": "1"}
    assert [entry["type"] for entry in stored["status"]["conditions"]] == ["Ready"]
    changed = Wanted(ref=EXPORT, body=content_patch(metadata={"labels": {"a": "2"}}))
    assert world.write(changed, world.present(EXPORT)) == [Verb.PATCH]
    assert world.write(EXPORT, world.present(EXPORT)) == [Verb.DELETE]
    assert world.objects.writes()[2:] == [f"patch {EXPORTS}/x", f"delete {EXPORTS}/x"]
    assert world.objects.get(Kind.SERVICE_EXPORT, "x") is None
    assert world.statistics.requests() == {
        ("local", "create", "ok"): 1,
        ("local", "status", "ok"): 1,
        ("local", "get", "ok"): 1,  # the answers to writes are known
        ("local", "patch", "ok"): 1,
        ("local", "delete", "ok"): 1,
    }


def test_the_answer_to_a_write_is_known_without_a_read(watched: World) -> None:
    """Of a watched kind: also that the object is deleted."""
    watched.write(wanted(a="1"), None)
    assert watched.present() == watched.cache.get(REF, ConfigMap)
    watched.write(wanted(a="2"), watched.present())
    written = watched.cache.get(REF, ConfigMap)
    assert written is not None
    assert written.data == {"a": "2"}
    watched.write(REF, written)
    assert watched.cache.get(REF, ConfigMap) is None
    assert watched.statistics.requests() == {
        ("local", "create", "ok"): 1,
        ("local", "patch", "ok"): 1,
        ("local", "delete", "ok"): 1,
    }


def test_a_write_over_another_version_is_a_conflict(world: World) -> None:
    """With the object as it is now; what another client wrote stays."""
    world.objects.put(Kind.CONFIG_MAP, "x", data={"a": "1"})
    old = world.present()
    world.objects.change(Kind.CONFIG_MAP, "x", lambda obj: {**obj, "data": {"a": "theirs"}})
    for step in (wanted(a="2"), REF):
        with pytest.raises(ConflictError, match=r"^ConfigMap kube-system/x: .*HTTP 409") as caught:
            world.write(step, old)
        assert isinstance(caught.value.present, ConfigMap)
        assert caught.value.present.data == {"a": "theirs"}
    assert world.data() == {"a": "theirs"}


def test_a_creation_of_what_another_client_created_is_a_conflict(world: World) -> None:
    """The object is not written over."""
    world.objects.put(Kind.CONFIG_MAP, "x", data={"a": "theirs"})
    with pytest.raises(ConflictError) as caught:
        world.write(wanted(a="1"), None)
    assert isinstance(caught.value.present, ConfigMap)
    assert caught.value.present.data == {"a": "theirs"}
    assert world.data() == {"a": "theirs"}


def test_a_patch_of_a_deleted_object_is_a_conflict(world: World) -> None:
    """With nothing as the present object: it is created by the next attempt, if it is still desired."""
    world.objects.put(Kind.CONFIG_MAP, "x", data={"a": "1"})
    old = world.present()
    world.objects.remove(Kind.CONFIG_MAP, "x")
    with pytest.raises(ConflictError) as caught:
        world.write(wanted(a="2"), old)
    assert caught.value.present is None
    assert world.data() is None


def test_a_status_that_the_server_does_not_have_is_a_refusal(world: World) -> None:
    """Without the subresource a CRD answers 404 while the object is there: no conflict, and reported."""
    world.objects.put(Kind.SERVICE_EXPORT, "x")
    world.api.faults.add(Fault(kind=FaultKind.STATUS, code=404, verbs=("patch",), path="/status"))
    with pytest.raises(ApiRefusalError, match="no such resource"):
        world.write(Wanted(ref=EXPORT, conditions={"Ready": READY}), world.present(EXPORT))


def test_a_deletion_of_a_deleted_object_is_done(world: World) -> None:
    """The object is absent, as desired."""
    world.objects.put(Kind.CONFIG_MAP, "x", data={})
    old = world.present()
    world.objects.remove(Kind.CONFIG_MAP, "x")
    assert world.write(REF, old) == [Verb.DELETE]


def test_an_object_that_was_created_again_is_not_deleted(world: World) -> None:
    """It is another one, whatever its name."""
    world.objects.put(Kind.CONFIG_MAP, "x", data={"a": "1"})
    old = world.present()
    world.objects.remove(Kind.CONFIG_MAP, "x")
    world.objects.put(Kind.CONFIG_MAP, "x", data={"a": "theirs"})
    with pytest.raises(ConflictError):
        world.write(REF, old)
    assert world.data() == {"a": "theirs"}


def test_without_the_lease_nothing_is_sent(world: World) -> None:
    """Reads are, because they change nothing."""
    world.objects.put(Kind.CONFIG_MAP, "x", data={"a": "1"})
    present = world.present()
    world.permit = 0.0
    for step, present_object in ((wanted(a="2"), present), (REF, present), (wanted(SECOND, a="1"), None)):
        with pytest.raises(NotLeadingError, match=r"^this replica does not hold the lease$"):
            world.write(step, present_object)
    assert world.objects.writes() == []
    world.written.forget(REF)
    assert world.present() == present
    assert world.statistics.requests() == {("local", "get", "ok"): 2}


def test_a_write_ends_with_the_permit(world: World) -> None:
    """A server that does not answer holds it up until then, and no longer."""
    world.api.faults.add(Fault(kind=FaultKind.SILENT, verbs=("create",)))
    world.permit = 0.2
    with pytest.raises(ApiUnreachableError, match="no answer in time"):
        world.write(wanted(a="1"), None)
    assert world.statistics.requests() == {("local", "create", "unreachable"): 1}


def test_nothing_is_written_to_a_leader_that_there_is_not(world: World) -> None:
    """On a leader's controller, or before there is a ClusterSet."""
    ref = Ref(side=Side.LEADER, kind=Kind.CONFIG_MAP, namespace=NAMESPACE, name="x")
    with pytest.raises(AwayError, match=r"^this controller has no leader to write to$"):
        world.write(wanted(ref, a="1"), None)
    assert world.statistics.requests() == {}


@pytest.mark.parametrize(
    ("fault", "error", "code"),
    [
        (Fault(kind=FaultKind.STATUS, code=403), ApiRefusalError, "403"),
        (Fault(kind=FaultKind.STATUS, code=404), ApiRefusalError, "404"),
        (Fault(kind=FaultKind.STATUS, code=500), ApiRefusalError, "500"),
        (Fault(kind=FaultKind.DROP), ApiUnreachableError, "unreachable"),
        (Fault(kind=FaultKind.GARBAGE, body="html"), ApiGarbageError, "garbage"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_failures_are_counted_by_their_code(world: World, fault: Fault, error: type[Exception], code: str) -> None:
    """Of writes and of reads; a resource that the server does not have is no absent object."""
    world.api.faults.add(fault)
    with pytest.raises(error):
        world.writer().present(REF)
    world.client.close()  # the server closes a connection after garbage, in its own time
    with pytest.raises(error):
        world.write(wanted(a="1"), None)
    assert world.statistics.requests() == {("local", "create", code): 1, ("local", "get", code): 1}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"kind": "ConfigMap", "metadata": {"name": "z", "resourceVersion": "1"}}', "is another object"),
        ('{"kind": "Secret", "metadata": {"name": "x", "resourceVersion": "1"}}', "is no ConfigMap"),
        ("42", "is no ConfigMap"),
    ],
)
def test_an_answer_with_another_object_is_garbage(world: World, body: str, message: str) -> None:
    """Nothing is taken from it."""
    world.api.faults.add(Fault(kind=FaultKind.GARBAGE, body=body))
    with pytest.raises(ApiGarbageError, match=f"^ConfigMap kube-system/x: the answer {message}$"):
        world.write(wanted(a="1"), None)


@pytest.mark.parametrize(
    "body",
    [
        "42",
        '{"kind": "Status", "metadata": {}}',
        '{"kind": "ConfigMap"}',
        '{"kind": "ConfigMap", "metadata": {"name": "x", "uid": "u", "resourceVersion": "1"}}',
    ],
)
def test_a_deletion_is_done_whatever_its_answer(watched: World, body: str) -> None:
    """Servers answer with a Status or, for Services, with the last version of the object: it is sent once."""
    watched.write(wanted(a="1"), None)
    watched.api.faults.add(Fault(kind=FaultKind.GARBAGE, verbs=("delete",), body=body))
    assert watched.write(REF, watched.present()) == [Verb.DELETE]
    assert watched.objects.writes() == [f"create {PATH}", f"delete {PATH}/x"]
    assert watched.cache.get(REF, ConfigMap) is None


class PruningClient(Client):
    """A client of a server whose CRDs lack a field: it is dropped from each object that is sent."""

    def request(self, method: str, path: str, *arguments: Any, body: Any = None, **options: Any) -> Any:
        """Drop data.new."""
        body = copy.deepcopy(body)
        if isinstance(body, dict) and isinstance(body.get("data"), dict):
            body["data"].pop("new", None)
        return super().request(method, path, *arguments, body=body, **options)


def test_a_field_that_the_server_drops_is_sent_once(
    api: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported; another value of the field is sent, and so are other fields."""
    file = tmp_path / "kubeconfig"
    api.write_kubeconfig(file)
    world = World(api, PruningClient(str(file)))
    assert world.write(wanted(new="1", a="1"), None) == [Verb.CREATE]
    assert world.data() == {"a": "1"}
    assert "ConfigMap kube-system/x: the API server drops data.new: not sent again for an hour" in caplog.messages
    assert world.written.dropped_fields(Side.LOCAL) == ["ConfigMap data.new"]
    caplog.clear()
    assert world.writer().plan(wanted(new="1", a="1"), world.present()) is None
    assert world.write(wanted(new="2", a="1"), world.present()) == [Verb.PATCH]
    assert world.write(wanted(new="2", a="2"), world.present()) == [Verb.PATCH]
    assert world.data() == {"a": "2"}
    assert caplog.text == ""


# --- the worker ---------------------------------------------------------------------------------------------


def test_a_key_is_written_counted_and_then_unchanged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The reconciler gets the key and the time; its Events are those that there should be."""
    caplog.set_level("INFO")
    event = Event(subject="x", reason="Copied", message="text")
    world.reconciler.desires = DesiredObjects(steps=[wanted(a="1"), wanted(SECOND, a="2")], events=[event])
    assert world.work()
    assert world.reconciler.calls == [("x", 5.0)]
    assert (world.data("x"), world.data("y")) == ({"a": "1"}, {"a": "2"})
    assert world.events.take() == frozenset({event})
    assert world.results() == {"changed": 1}
    assert world.worker.statistics.writes() == {("maps", "local", "ConfigMap", "create"): 2}
    assert "maps: create ConfigMap kube-system/x" in caplog.messages
    assert world.work()
    assert world.results() == {"changed": 1, "unchanged": 1}
    assert len(world.objects.writes()) == 2
    assert world.queue.counts() == (0, 0)


def test_steps_are_written_in_order_up_to_the_first_that_fails(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The key is tried again; the reason is known by object, and is logged once."""
    world.api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("create",), path="configmaps", times=2))
    third = Ref(kind=Kind.CONFIG_MAP, namespace=NAMESPACE, name="z")
    world.objects.put(Kind.CONFIG_MAP, "z", data={"a": "1"})
    world.reconciler.desires = DesiredObjects(steps=[wanted(third, a="2"), wanted(a="1"), wanted(SECOND, a="1")])
    assert not world.work()
    assert (world.data("z"), world.data("x"), world.data("y")) == ({"a": "2"}, None, None)
    (failure,) = world.written.failures().items()
    assert failure[0] == REF
    assert "not allowed" in failure[1]
    assert f"maps: ConfigMap kube-system/x: {failure[1]}" in caplog.messages
    caplog.clear()
    assert not world.work()
    assert caplog.text == ""
    assert world.results() == {"failed": 2}
    assert world.again() == []
    assert world.work()
    assert world.written.failures() == {}
    assert world.again() == [ENTRY]  # what reported the failure must go
    assert (world.data("x"), world.data("y")) == ({"a": "1"}, {"a": "1"})
    assert world.results() == {"failed": 2, "changed": 1}


def test_a_refused_write_that_is_no_longer_desired_is_forgotten(world: World) -> None:
    """As soon as the key went well without it."""
    world.api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("create",), times=1))
    world.reconciler.desires = DesiredObjects(steps=[wanted(a="1")])
    assert not world.work()
    assert list(world.written.failures()) == [REF]
    world.reconciler.desires = DesiredObjects(steps=[wanted(SECOND, a="1")])
    assert world.work()
    assert world.written.failures() == {}


def test_refusals_of_one_key_are_forgotten_together(world: World) -> None:
    """That of a write which another refused one has replaced goes at once; those of other keys stay."""
    world.written.failed(EXPORT, "of another key")
    world.api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("create",), times=2))
    for ref in (REF, SECOND):
        world.reconciler.desires = DesiredObjects(steps=[wanted(ref, a="1")])
        assert not world.work()
    assert sorted(world.written.failures()) == [SECOND, EXPORT]
    assert world.work()
    assert list(world.written.failures()) == [EXPORT]


def test_a_step_that_the_reconciler_refuses_is_a_failure(world: World) -> None:
    """Its reason is that of the object, which stays as it is."""
    world.objects.put(Kind.CONFIG_MAP, "x", data={"a": "theirs"})
    step = Wanted(ref=REF, body=patch(ConfigMap, data={"a": "1"}), refuse=lambda _: Refusal(reason="not ours"))
    world.reconciler.desires = DesiredObjects(steps=[step])
    assert not world.work()
    assert world.written.failures() == {REF: "not ours"}
    assert world.data() == {"a": "theirs"}


@pytest.mark.parametrize("kinds", [(), (Kind.CONFIG_MAP,)])
def test_after_a_conflict_the_next_attempt_is_made_from_what_is_there(
    api: ApiServer, tmp_path: Path, kinds: Sequence[Kind]
) -> None:
    """Watched or not; fields that another client added stay, and no failure is reported."""
    world = World(api, client_of(api, tmp_path), kinds)
    world.reconciler.desires = DesiredObjects(steps=[wanted(a="1")])
    assert world.work()
    world.work()
    world.objects.change(Kind.CONFIG_MAP, "x", lambda obj: {**obj, "data": {"a": "1", "b": "theirs"}})
    world.reconciler.desires = DesiredObjects(steps=[wanted(a="2"), wanted(SECOND, a="1")])
    assert not world.work()
    assert world.written.failures() == {}
    assert world.data("y") is None
    assert world.results()["conflict"] == 1
    assert world.work()
    assert world.data() == {"a": "2", "b": "theirs"}
    assert world.data("y") == {"a": "1"}


def test_after_a_conflict_with_a_deletion_the_object_is_created_again(watched: World) -> None:
    """The cache has the old object until then."""
    watched.reconciler.desires = DesiredObjects(steps=[wanted(a="1")])
    assert watched.work()
    watched.objects.remove(Kind.CONFIG_MAP, "x")
    watched.reconciler.desires = DesiredObjects(steps=[wanted(a="2")])
    assert not watched.work()
    assert watched.cache.get(REF, ConfigMap) is None
    assert watched.work()
    assert watched.data() == {"a": "2"}


def test_without_permit_or_with_a_closed_gate_a_reconciler_is_not_asked(world: World) -> None:
    """The key is not tried again: all keys are enqueued when that changes."""
    world.reconciler.desires = DesiredObjects(steps=[wanted(a="1")])
    world.permit = 0.0
    assert world.work()
    world.permit, world.is_open = math.inf, False
    assert world.work()
    assert world.reconciler.calls == []
    assert world.results() == {}
    assert world.objects.writes() == []


def test_a_lease_that_is_lost_during_the_work_is_no_failure(world: World) -> None:
    """Nothing more is written, and the key is not tried again by this replica."""
    permits = iter([1.0, 10.0])
    worker = Worker(
        {"maps": world.reconciler},
        client=world.client,
        written=world.written,
        events=world.events,
        views={"maps": EngineView(world.cache, NAMESPACE, None, world.written, world.events)},
        connection=None,
        gate=lambda _: True,
        permit=lambda: next(permits, 0.0),
        clock=lambda: 5.0,
    )
    world.reconciler.desires = DesiredObjects(steps=[wanted(a="1"), wanted(SECOND, a="1")])
    assert worker.work(ENTRY, world.queue)
    assert (world.data("x"), world.data("y")) == ({"a": "1"}, None)
    assert worker.statistics.results() == {("maps", "not-leading"): 1}
    assert world.written.failures() == {}


def test_a_leader_that_is_away_is_no_failure_of_an_object(world: World) -> None:
    """The key is tried again."""
    ref = Ref(side=Side.LEADER, kind=Kind.CONFIG_MAP, namespace=NAMESPACE, name="x")
    world.reconciler.desires = DesiredObjects(steps=[wanted(ref, a="1")])
    assert not world.work()
    assert world.results() == {"away": 1}
    assert world.written.failures() == {}


@pytest.mark.parametrize(
    "desires",
    [
        DesiredObjects(steps=[Ref(kind=Kind.SECRET, namespace=NAMESPACE, name="x")]),  # not declared
        DesiredObjects(steps=[Wanted(ref=REF, body=ConfigMap(data={"a": "1"}))]),  # no patch
        None,
    ],
)
def test_a_bug_of_a_reconciler_affects_its_key_only(
    world: World, desires: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and counted, and the key is tried again; nothing is written."""
    world.reconciler.desires = desires
    assert not world.work()
    assert world.results() == {"bug": 1}
    (record,) = [record for record in caplog.records if record.getMessage() == "maps: x failed, which is a bug"]
    assert record.exc_info  # the log has the traceback
    assert world.objects.writes() == []


def test_a_key_is_worked_on_again_when_the_reconciler_asks_for_it(world: World) -> None:
    """After as many seconds, also when a write failed."""
    world.reconciler.desires = DesiredObjects(steps=[wanted(a="1")], again=30.0)
    assert world.work()
    world.now = 29.0
    assert world.again() == []
    world.now = 30.0
    assert world.again() == [ENTRY]
    world.api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("patch",)))
    world.reconciler.desires = DesiredObjects(steps=[wanted(a="2")], again=5.0)
    assert not world.work()
    world.now = 35.0
    assert world.again() == [ENTRY]


def test_a_write_that_another_client_reverts_becomes_rare(
    watched: World, caplog: pytest.LogCaptureFixture
) -> None:
    """After three equal writes the key waits; it is logged once, and is no failure."""

    def revert() -> None:
        watched.objects.change(Kind.CONFIG_MAP, "x", lambda obj: {**obj, "data": {"a": "theirs"}})
        watched.written.store(REF, typed(watched.objects.get(Kind.CONFIG_MAP, "x")), None, 0)

    watched.objects.put(Kind.CONFIG_MAP, "x", data={"a": "theirs"})
    watched.written.store(REF, typed(watched.objects.get(Kind.CONFIG_MAP, "x")), None, 0)
    watched.reconciler.desires = DesiredObjects(steps=[wanted(a="1"), wanted(SECOND, a="1")])
    for _ in range(3):
        assert "keeps being reverted" not in caplog.text
        assert watched.work()
        revert()
    assert "maps: ConfigMap kube-system/x keeps being reverted: writing it less often" in caplog.messages
    patches = len(watched.objects.writes())
    assert watched.work()
    assert len(watched.objects.writes()) == patches
    assert watched.data() == {"a": "theirs"}
    assert watched.queue.counts() == (1, 0)
    assert watched.again() == []
    watched.now = 1.0
    assert watched.again() == [ENTRY]
    assert watched.written.failures() == {}


def test_a_status_that_another_client_reverts_holds_up_nothing_else(watched: World) -> None:
    """It is a report: what follows does not build on it."""
    watched.reconciler.writes = Access(local={Kind.CONFIG_MAP, Kind.SERVICE_EXPORT})
    watched.objects.put(Kind.SERVICE_EXPORT, "x")
    status = Wanted(ref=EXPORT, conditions={"Ready": READY}, create=False)
    for number in range(5):
        watched.objects.put_status(Kind.SERVICE_EXPORT, "x", {"conditions": []})
        watched.written.forget(EXPORT)
        watched.reconciler.desires = DesiredObjects(steps=[status, wanted(a=str(number))])
        assert watched.work()
        assert watched.data() == {"a": str(number)}
    assert watched.objects.writes().count(f"patch {EXPORTS}/x/status") == 3
    assert watched.queue.counts() == (1, 0)


@pytest.mark.parametrize(("code", "data"), [(403, {"a": "1"}), (404, {"a": "1"}), (401, None), (503, None)])
def test_a_status_that_is_refused_holds_up_nothing_else(watched: World, code: int, data: object) -> None:
    """As by a CRD without status. An API server that accepts nothing is not asked for more."""
    watched.reconciler.writes = Access(local={Kind.CONFIG_MAP, Kind.SERVICE_EXPORT})
    watched.objects.put(Kind.SERVICE_EXPORT, "x")
    watched.api.faults.add(Fault(kind=FaultKind.STATUS, code=code, verbs=("patch",), path="/status"))
    status = Wanted(ref=EXPORT, conditions={"Ready": READY}, create=False)
    watched.reconciler.desires = DesiredObjects(steps=[status, wanted(a="1")])
    assert not watched.work()
    assert watched.data() == data
    assert list(watched.written.failures()) == [EXPORT]
    watched.api.faults.clear()
    assert watched.work()
    assert watched.written.failures() == {}


# --- what is written at the end ------------------------------------------------------------------------------


def test_the_last_writes_are_made_from_what_is_there(world: World) -> None:
    """What is as desired already is not written; a conflict does not keep the write from being made."""
    world.objects.put(Kind.CONFIG_MAP, "x", data={"a": "1"})
    world.objects.put(Kind.CONFIG_MAP, "y", data={"a": "1"})
    world.present()
    world.objects.change(Kind.CONFIG_MAP, "x", lambda obj: {**obj, "data": {"a": "1", "b": "theirs"}})
    world.worker.write_last([wanted(a="2"), wanted(SECOND, a="1")])
    assert world.data() == {"a": "2", "b": "theirs"}
    assert world.objects.writes() == [f"patch {PATH}/x", f"patch {PATH}/x"]


def test_a_last_write_that_fails_leaves_the_others(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, with the object."""
    caplog.set_level("INFO")
    world.api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("create",), times=1))
    world.worker.write_last([wanted(a="1"), wanted(SECOND, a="1")])
    assert (world.data("x"), world.data("y")) == (None, {"a": "1"})
    assert any(
        text.startswith("ConfigMap kube-system/x: not written before the end: ") for text in caplog.messages
    )


@pytest.mark.parametrize(("conflicts", "data"), [(2, {"a": "1"}), (3, None)])
def test_a_last_write_is_attempted_three_times(world: World, conflicts: int, data: Any) -> None:
    """Another writer may be faster twice."""
    world.api.faults.add(Fault(kind=FaultKind.STATUS, code=409, verbs=("create",), times=conflicts))
    world.worker.write_last([wanted(a="1")])
    assert world.data() == data
    assert len(world.objects.writes()) == 3
