"""The engine with a toy reconciler, against embedded API servers over the loopback."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import GARBAGE, ApiServer, Fault, FaultKind
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.engine import Engine
from mcagent.controller.machinery.informers import LocalInformers
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    ObjectChange,
    Reconciler,
    Ref,
    Side,
    View,
    Wanted,
)
from mcagent.controller.machinery.statistics import Statistics
from mcagent.controller.machinery.writer import Writer
from mcagent.controller.machinery.written import WrittenObjects
from mcagent.kube.source import EventType, WatchEvent
from mcagent.model.api.base import Metadata
from mcagent.model.api.kubernetes import ConfigMap
from mcagent.model.api.multicluster import ApiServiceExport
from mcagent.model.api.patches import patch
from mcagent.model.event import Event
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object
from tests.embedded.controlworld import (
    COMMON_AREA,
    NAMESPACE,
    QUICK,
    Copier,
    Objects,
    client_of,
    copies,
    export,
    join,
)
from tests.waiting import until


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """Give the API server of the cluster."""
    with ApiServer(bookmark_interval=0.1) as server:
        yield server


@pytest.fixture
def leader_api() -> Iterator[ApiServer]:
    """Give the API server of the leader, which wants a token."""
    with ApiServer(bookmark_interval=0.1, tokens=frozenset({"secret"})) as server:
        yield server


@pytest.fixture
def local(api: ApiServer) -> Objects:
    """Give the objects of the cluster."""
    return Objects(api)


@pytest.fixture
def remote(leader_api: ApiServer) -> Objects:
    """Give the objects of the leader."""
    return Objects(leader_api)


@pytest.fixture
def run(api: ApiServer, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Give a function that starts an engine; all are stopped at the end."""
    engines: list[Engine] = []

    def start(*reconcilers: Reconciler, **settings: Any) -> Engine:
        engine = Engine(
            reconcilers, client_of(api, tmp_path), namespace=NAMESPACE, member=True, timing=QUICK, **settings
        )
        engines.append(engine)
        engine.start()
        return engine

    yield start
    for engine in engines:
        assert engine.stop()
        assert not engine.dead()


def said(objects: Objects, name: str) -> str | None:
    """Return what the copy of an export says; None when there is none."""
    copy = objects.get(Kind.CONFIG_MAP, f"copy-{name}")
    return None if copy is None else str(copy["data"]["said"])


def test_an_object_is_made_changed_and_taken_away(local: Objects, run: Callable[..., Engine]) -> None:
    """What an export asks for is there, follows it, and goes with it."""
    run(Copier())
    export(local, "a", "one")
    until(lambda: said(local, "a") == "one")
    export(local, "a", "two")
    until(lambda: said(local, "a") == "two")
    local.remove(Kind.SERVICE_EXPORT, "a")
    until(lambda: said(local, "a") is None)


def test_drift_is_put_right_and_what_others_added_stays(local: Objects, run: Callable[..., Engine]) -> None:
    """A field of ours that somebody changes is ours again; one that is not ours is left alone."""
    run(Copier())
    export(local, "a", "one")
    until(lambda: said(local, "a") == "one")
    local.change(
        Kind.CONFIG_MAP,
        "copy-a",
        lambda old: {**old, "data": {"said": "wrong", "more": "theirs"}},
    )
    until(lambda: said(local, "a") == "one")
    assert local.get(Kind.CONFIG_MAP, "copy-a")["data"]["more"] == "theirs"
    local.remove(Kind.CONFIG_MAP, "copy-a")
    until(lambda: said(local, "a") == "one")


def test_an_engine_that_starts_anew_writes_nothing_that_is_right_already(
    api: ApiServer, local: Objects, run: Callable[..., Engine]
) -> None:
    """After a restart the objects are compared, and left as they are; leftovers go."""
    first = run(Copier())
    for name in "abc":
        export(local, name, "x")
    until(lambda: said(local, "c") == "x" and first.idle())
    first.stop()
    local.remove(Kind.SERVICE_EXPORT, "b")
    api.requests.clear()
    second = run(Copier())
    until(lambda: said(local, "b") is None and second.idle())
    assert local.writes() == [f"delete /api/v1/namespaces/{NAMESPACE}/configmaps/copy-b"]


@pytest.mark.parametrize("side", list(Side))
def test_a_restart_looks_at_each_key_once(
    local: Objects, remote: Objects, run: Callable[..., Engine], leader_api: ApiServer, side: Side
) -> None:
    """Neither the lists nor the connection to the leader ask for what is looked at anyway."""
    names = [f"e{number:02}" for number in range(100)]
    if side is Side.LEADER:
        join(local, leader_api.url)
    first = run(Copier(side))
    for name in names:
        export(local, name, "x")
    target = local if side is Side.LOCAL else remote
    until(lambda: len(target.names(Copier(side).target)) >= len(names) and first.idle())
    first.stop()
    copier = Copier(side)
    second = run(copier)
    until(lambda: len(copier.looks) >= len(names))
    if side is Side.LEADER:
        until(lambda: second.view.leader is not None and second.view.leader.synced)
    until(second.idle)
    assert Counter(copier.looks) == dict.fromkeys(names, 1)


def test_one_bad_key_does_not_stop_the_rest(local: Objects, run: Callable[..., Engine]) -> None:
    """A reconciler that trips over one object goes on with the others, and the bug is counted."""
    copier = Copier()
    copier.bad = {"b"}
    engine = run(copier)
    for name in "abc":
        export(local, name, "x")
    until(lambda: said(local, "a") == said(local, "c") == "x")
    until(lambda: engine.worker.statistics.results().get((copier.name, "bug"), 0) > 0)
    assert not engine.dead()


@pytest.mark.parametrize("fault", [FaultKind.DROP, FaultKind.TRUNCATED])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_watch_may_be_cut_at_any_point(
    api: ApiServer, local: Objects, run: Callable[..., Engine], fault: FaultKind, after: int
) -> None:
    """Whatever was missed while a watch was down is caught up with."""
    api.faults.add(Fault(kind=fault, verbs=("watch",), after=after, times=12))
    run(Copier())
    for turn in range(3):
        for name in "abcde":
            export(local, name, f"{name}{turn}")
    until(lambda: all(said(local, name) == f"{name}2" for name in "abcde"))


def test_a_storm_of_conflicts_ends_well(api: ApiServer, local: Objects, run: Callable[..., Engine]) -> None:
    """Writes that are refused with 409 are tried again from what is there, with pauses."""
    run(Copier())
    api.faults.add(Fault(kind=FaultKind.STATUS, code=409, verbs=("create", "patch"), times=20))
    for name in "abc":
        export(local, name, "x")
    until(lambda: all(said(local, name) == "x" for name in "abc"))


def test_a_write_from_an_old_look_never_wins(api: ApiServer, local: Objects, run: Callable[..., Engine]) -> None:
    """A change that a silent watch did not tell makes our write conflict; it is made anew from what is there."""
    engine = run(Copier())
    export(local, "a", "one")
    until(lambda: said(local, "a") == "one" and engine.idle())
    api.faults.add(Fault(kind=FaultKind.SILENT, verbs=("watch",), path="configmaps"))
    api.drop_connections()
    until(lambda: any("watch" in str(r) for r in list(api.requests)[-4:]))
    local.change(Kind.CONFIG_MAP, "copy-a", lambda old: {**old, "data": {**old["data"], "more": "theirs"}})
    export(local, "a", "two")
    until(lambda: said(local, "a") == "two")
    assert local.get(Kind.CONFIG_MAP, "copy-a")["data"]["more"] == "theirs"


def test_a_refused_write_is_told_and_forgotten_when_it_works(
    api: ApiServer, local: Objects, run: Callable[..., Engine]
) -> None:
    """The reconciler sees why its write was refused, and is asked again when it no longer is."""
    recorded: list[frozenset[Event]] = []
    api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("create",), path="configmaps"))
    engine = run(Copier(), record=recorded.append)
    export(local, "a", "one")
    until(lambda: recorded and any("not allowed" in item.message for item in recorded[-1]))
    api.faults.clear()
    until(lambda: said(local, "a") == "one")
    until(lambda: recorded[-1] == frozenset())
    assert not engine.written.failures()


def test_a_refusal_of_what_is_wanted_no_longer_is_forgotten(
    api: ApiServer, local: Objects, run: Callable[..., Engine]
) -> None:
    """An export whose copy could not be made goes: nothing is refused any more."""
    api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("create",), path="configmaps"))
    engine = run(Copier())
    export(local, "a", "one")
    until(lambda: len(engine.written.failures()) == 1)
    local.remove(Kind.SERVICE_EXPORT, "a")
    until(lambda: not engine.written.failures())


class Mover(Copier):
    """Copies to the name that a label gives, and deletes nothing."""

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the copy."""
        desired = super().desired(key, view, now)
        export = view.get(Ref(kind=Kind.SERVICE_EXPORT, namespace=NAMESPACE, name=key), ApiServiceExport)
        names = export.labels["said"].split("-") if export is not None else []
        steps = [
            replace(step, ref=replace(step.ref, name=name))
            for name in names
            for step in desired.steps
            if isinstance(step, Wanted)
        ]
        return replace(desired, steps=steps)


def test_refusals_of_several_objects_are_forgotten_with_them(
    api: ApiServer, local: Objects, run: Callable[..., Engine]
) -> None:
    """Of what a key wants one after the other, only what it wants now is refused, and nothing once all is well."""
    refused = Fault(kind=FaultKind.STATUS, code=403, verbs=("create",), path="configmaps")
    api.faults.add(refused)
    engine = run(Mover())

    def names() -> list[str]:
        return sorted(ref.name for ref in engine.written.failures())

    export(local, "a", "one")
    until(lambda: names() == ["one"])
    export(local, "a", "two")
    until(lambda: names() == ["two"])
    export(local, "a", "three-two")  # the first one stops the pass
    until(lambda: names() == ["three", "two"])
    api.faults.clear()
    export(local, "a", "four")
    until(lambda: local.get(Kind.CONFIG_MAP, "four") is not None)
    until(lambda: not names())


def test_the_same_write_again_and_again_becomes_rare(local: Objects, run: Callable[..., Engine]) -> None:
    """Somebody who changes an object back each time does not make us write in a tight loop."""
    engine = run(Copier())
    export(local, "a", "one")
    until(lambda: said(local, "a") == "one")
    for _ in range(12):
        until(lambda: said(local, "a") == "one" or engine.written.repeated())
        local.change(Kind.CONFIG_MAP, "copy-a", lambda old: {**old, "data": {"said": "wrong"}})
    patches = [write for write in local.writes("copy-a") if write.startswith("patch")]
    assert 3 <= len(patches) <= 5


def test_without_the_permit_nothing_is_written(api: ApiServer, local: Objects, run: Callable[..., Engine]) -> None:
    """A standby reads along; when it may write it does everything at once."""
    permit = [0.0]
    engine = run(Copier(), permit=lambda: permit[0])
    export(local, "a", "one")
    until(lambda: engine.cache.count(Side.LOCAL, Kind.SERVICE_EXPORT) == 1)
    assert local.writes() == []
    permit[0] = 10.0
    engine.resume()
    until(lambda: said(local, "a") == "one")


# --- the leader's side --------------------------------------------------------------------------------------


def test_a_member_connects_and_writes_to_its_leader(
    local: Objects, remote: Objects, leader_api: ApiServer, run: Callable[..., Engine]
) -> None:
    """With ClusterSet and Secret there, exports reach the leader's namespace."""
    engine = run(Copier(Side.LEADER))
    export(local, "a", "one")
    join(local, leader_api.url)
    until(lambda: copies(remote) == {"a": "one"})
    leader = engine.view.leader
    assert leader is not None
    assert (leader.connected, leader.cluster_id, leader.namespace) == (True, "east", COMMON_AREA)
    local.remove(Kind.CLUSTER_SET, "set")
    until(lambda: engine.view.leader is None)
    until(lambda: engine.cache.count(Side.LEADER, Kind.RESOURCE_EXPORT) == 0)


def test_a_leader_that_is_away_is_waited_for(
    local: Objects, remote: Objects, leader_api: ApiServer, run: Callable[..., Engine]
) -> None:
    """Its last known objects stay, local work goes on, and what was missed is written once when it is back."""
    engine = run(Copier(Side.LEADER), Copier())
    join(local, leader_api.url)
    export(local, "a", "one")
    until(lambda: copies(remote) == {"a": "one"})
    until(lambda: engine.cache.count(Side.LEADER, Kind.RESOURCE_EXPORT) == 1 and engine.idle())
    leader_api.refuse()
    until(
        lambda: (leader := engine.view.leader) is not None and not leader.connected and "refused" in leader.error
    )
    export(local, "b", "two")
    until(lambda: said(local, "b") == "two")
    assert engine.cache.count(Side.LEADER, Kind.RESOURCE_EXPORT) == 1
    leader_api.requests.clear()
    leader_api.refuse(False)
    until(lambda: copies(remote) == {"a": "one", "b": "two"} and engine.idle())
    assert len(remote.writes()) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind=FaultKind.SILENT),
        Fault(kind=FaultKind.SLOW, delay=5.0),
        *(Fault(kind=FaultKind.GARBAGE, body=name) for name in sorted(GARBAGE)),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.body}",
)
def test_a_leader_that_answers_badly_holds_up_nothing_local(
    local: Objects, leader_api: ApiServer, remote: Objects, run: Callable[..., Engine], fault: Fault
) -> None:
    """Slow answers and garbage of the leader keep local reconcilers from nothing, and end without a trace."""
    leader_api.faults.add(fault)
    engine = run(Copier(Side.LEADER), Copier())
    join(local, leader_api.url)
    until(lambda: engine.view.leader is not None)
    export(local, "a", "one")
    until(lambda: said(local, "a") == "one", timeout=4.5)
    assert copies(remote) == {}
    leader_api.faults.clear()
    leader_api.drop_connections()
    until(lambda: copies(remote) == {"a": "one"})


def test_an_expired_token_is_told_and_a_new_one_is_taken_up(
    local: Objects, leader_api: ApiServer, remote: Objects, run: Callable[..., Engine]
) -> None:
    """The connection says that the credentials were refused; a changed Secret mends it."""
    engine = run(Copier(Side.LEADER))
    join(local, leader_api.url)
    export(local, "a", "one")
    until(lambda: copies(remote) == {"a": "one"})
    until(lambda: engine.cache.count(Side.LEADER, Kind.RESOURCE_EXPORT) == 1 and engine.idle())
    leader_api.tokens = frozenset({"fresh"})
    leader_api.drop_connections()
    until(lambda: (leader := engine.view.leader) is not None and "credentials were refused" in leader.error)
    assert engine.cache.count(Side.LEADER, Kind.RESOURCE_EXPORT) == 1
    export(local, "b", "two")
    join(local, leader_api.url, token="fresh")
    until(lambda: copies(remote) == {"a": "one", "b": "two"})


def test_a_token_without_rights_is_told(local: Objects, leader_api: ApiServer, run: Callable[..., Engine]) -> None:
    """Lists that are forbidden are no connection, and the reason says so; no secret is in it."""
    leader_api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("list",)))
    engine = run(Copier(Side.LEADER))
    join(local, leader_api.url)
    until(lambda: (leader := engine.view.leader) is not None and "not allowed" in leader.error)
    leader = engine.view.leader
    assert leader is not None
    assert not leader.connected
    assert "secret" not in leader.error


def test_a_write_that_the_leader_denies_is_no_lost_connection(
    local: Objects, leader_api: ApiServer, remote: Objects, run: Callable[..., Engine]
) -> None:
    """Admission refuses one object: the connection stays, and others are written."""
    leader_api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("create",), times=1))
    engine = run(Copier(Side.LEADER))
    join(local, leader_api.url)
    until(lambda: (leader := engine.view.leader) is not None and leader.synced)
    export(local, "a", "one")
    export(local, "b", "two")
    until(lambda: copies(remote) == {"a": "one", "b": "two"})
    leader = engine.view.leader
    assert leader is not None
    assert leader.connected


def test_what_a_leader_refused_is_told_no_longer_than_there_is_this_leader(
    local: Objects, leader_api: ApiServer, run: Callable[..., Engine]
) -> None:
    """No reconciler is asked again about its objects: Events of them would be renewed without end."""
    recorded: list[frozenset[Event]] = []
    leader_api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("create",), path="resourceexports"))
    engine = run(Copier(Side.LEADER), Copier(), record=recorded.append)
    join(local, leader_api.url)
    export(local, "a", "one")
    until(lambda: recorded and any("not allowed" in item.message for item in recorded[-1]))
    local.remove(Kind.CLUSTER_SET, "set")
    until(lambda: engine.view.leader is None)
    until(lambda: recorded[-1] == frozenset() and not engine.written.failures())
    assert said(local, "a") == "one"


def test_another_leader_starts_from_an_empty_cache(
    local: Objects, leader_api: ApiServer, remote: Objects, run: Callable[..., Engine]
) -> None:
    """What the old leader had is not taken for what the new one has."""
    engine = run(Copier(Side.LEADER))
    join(local, leader_api.url)
    export(local, "a", "one")
    until(lambda: copies(remote) == {"a": "one"})
    with ApiServer(tokens=frozenset({"secret"})) as other:
        join(local, other.url)
        until(lambda: copies(Objects(other)) == {"a": "one"} and engine.idle())
        engine.stop()


def test_a_missing_secret_and_a_wrong_cluster_set_are_told(local: Objects, run: Callable[..., Engine]) -> None:
    """The view says what is missing instead of connecting."""
    engine = run(Copier(Side.LEADER))
    join(local, "https://127.0.0.1:1")
    local.remove(Kind.SECRET, "leader-token")
    until(lambda: (leader := engine.view.leader) is not None and "does not exist" in leader.error)
    local.change(
        Kind.CLUSTER_SET,
        "set",
        lambda old: {
            **old,
            "spec": {**old["spec"], "leaders": [{**old["spec"]["leaders"][0], "server": "http://x"}]},
        },
    )
    until(lambda: engine.view.leader is None)


def test_an_answer_that_comes_late_revives_nothing() -> None:
    """Taking the last finalizer off ends an object: neither that answer nor an older one brings it back."""
    ref = Ref(kind=Kind.CONFIG_MAP, namespace="a", name="x")

    def made(version: str, uid: str = "1", *, deleted: str = "", finalizers: tuple[str, ...] = ()) -> ConfigMap:
        return ConfigMap(
            metadata=Metadata(
                name="x",
                namespace="a",
                uid=uid,
                resource_version=version,
                deletion_timestamp=deleted,
                finalizers=finalizers,
            )
        )

    held = made("5", deleted="2024-01-01T00:00:00Z", finalizers=("f",))
    freed = made("6", deleted="2024-01-01T00:00:00Z")
    for late in (freed, held):
        cache = Cache({Side.LOCAL: [Kind.CONFIG_MAP]})
        cache.apply(Side.LOCAL, Kind.CONFIG_MAP, WatchEvent(type=EventType.ADDED, object=held))
        cache.apply(Side.LOCAL, Kind.CONFIG_MAP, WatchEvent(type=EventType.DELETED, object=freed))
        cache.wrote(ref, late)
        assert cache.get(ref, ConfigMap) is None
    cache.wrote(ref, made("7", "2"))
    assert cache.get(ref, ConfigMap) is not None
    cache.wrote(ref, made("8", "2", deleted="2024-01-01T00:00:00Z"))
    assert cache.get(ref, ConfigMap) is None


def test_an_object_that_a_finalizer_holds_is_still_there_after_its_deletion(
    api: ApiServer, local: Objects, tmp_path: Path
) -> None:
    """Also of kinds whose name in the API is not that of their Kind."""
    kind = Kind.UPSTREAM_CLUSTER_NETWORK_POLICY
    info = KINDS[kind]
    api.registry.define(
        {
            "metadata": {"name": f"{info.plural}.{info.group}"},
            "spec": {
                "group": info.group,
                "scope": "Cluster",
                "names": {"plural": info.plural, "kind": info.name},
                "versions": [{"name": info.version, "served": True, "storage": True}],
            },
        }
    )
    client, path = client_of(api, tmp_path), object_path(kind, "")
    body = {"apiVersion": info.api_version, "kind": info.name}
    client.request("POST", path, body=body | {"metadata": {"name": "a", "finalizers": ["example.org/hold"]}})
    obj = read_object(kind, client.request("GET", f"{path}/a"))
    cache, ref = Cache({Side.LOCAL: [kind]}), Ref(kind=kind, name="a")
    cache.apply(Side.LOCAL, kind, WatchEvent(type=EventType.ADDED, object=obj))
    written = WrittenObjects(cache)
    writer = Writer(client, None, 0, lambda: math.inf, statistics=Statistics(), written=written)
    deletion = writer.plan(ref, obj)
    assert deletion is not None
    assert writer.carry_out(ref, obj, deletion) == [deletion]
    stored = writer.present(ref)
    assert stored is not None
    assert stored.is_deleting


class Beats:
    """Writes something to the leader again and again, which it does not read, as heartbeats do."""

    name = "beats"
    needs_leader = False
    reads = Access(local={Kind.CLUSTER_SET})
    writes = Access(leader={Kind.CONFIG_MAP})
    indexes = ()

    def __init__(self, keys: int = 1) -> None:
        self.names = [f"beat-{number}" for number in range(keys)]
        self.count = 0

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return all."""
        return self.names

    def all_keys(self, view: View) -> Iterable[str]:
        """Return all."""
        return self.names

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return an object that differs each time."""
        if view.leader is None:
            return DesiredObjects()
        self.count += 1
        ref = Ref(side=Side.LEADER, kind=Kind.CONFIG_MAP, namespace=COMMON_AREA, name=key)
        body = patch(ConfigMap, data={"beat": str(self.count)})
        return DesiredObjects(steps=[Wanted(ref=ref, body=body)], again=0.02)


def test_what_is_not_watched_is_not_read_before_each_write(
    local: Objects, leader_api: ApiServer, remote: Objects, run: Callable[..., Engine]
) -> None:
    """A heartbeat is one request; an object that somebody else changed meanwhile is read anew."""
    run(Beats())
    join(local, leader_api.url)
    until(lambda: len(remote.writes("configmaps/beat-0")) >= 5)
    reads = [path for _, verb, path in list(leader_api.requests) if verb == "get" and "beat-0" in path]
    assert len(reads) <= 2
    remote.change(
        Kind.CONFIG_MAP, "beat-0", lambda old: {**old, "data": {**old["data"], "more": "1"}}, COMMON_AREA
    )
    so_far = len(remote.writes("configmaps/beat-0"))
    until(lambda: len(remote.writes("configmaps/beat-0")) >= so_far + 3)
    assert remote.get(Kind.CONFIG_MAP, "beat-0", COMMON_AREA)["data"]["more"] == "1"


def test_who_only_writes_to_the_leader_holds_up_nothing_local(
    local: Objects, leader_api: ApiServer, remote: Objects, run: Callable[..., Engine]
) -> None:
    """With more such keys than workers and a leader that hangs, local objects are written at once."""
    engine = run(Beats(keys=8), Copier())
    join(local, leader_api.url)
    until(lambda: len(remote.names(Kind.CONFIG_MAP)) >= 8)
    leader_api.faults.add(Fault(kind=FaultKind.SILENT, verbs=("get", "create", "patch")))
    until(lambda: engine.waiting()[1] >= 1)  # of two workers of a side no reconciler has more
    export(local, "a", "one")
    until(lambda: said(local, "a") == "one", timeout=4.5)
    leader_api.faults.clear()
    leader_api.drop_connections()


# --- the informers of this cluster ------------------------------------------------------------------------------


@pytest.fixture
def informers(api: ApiServer, tmp_path: Path) -> Iterator[Callable[..., tuple[LocalInformers, Cache]]]:
    """Give a function that reads kinds into a cache; all is stopped at the end."""
    started: list[LocalInformers] = []

    def start(*kinds: Kind, namespace: str = "") -> tuple[LocalInformers, Cache]:
        cache = Cache({Side.LOCAL: kinds})
        informers = LocalInformers(
            kinds, client_of(api, tmp_path), cache, namespace=namespace, timing=QUICK.informers
        )
        informers.start()
        started.append(informers)
        return informers, cache

    yield start
    for informers in started:
        informers.stop()


@pytest.mark.parametrize(
    ("code", "report"),
    [
        (404, ("INFO", "the API server does not have labelidentities: assuming none")),
        (403, ("WARNING", "not allowed to read labelidentities: assuming none")),
    ],
)
def test_kinds_that_a_cluster_may_lack_count_as_empty(
    api: ApiServer,
    informers: Callable[..., tuple[LocalInformers, Cache]],
    caplog: pytest.LogCaptureFixture,
    code: int,
    report: tuple[str, str],
) -> None:
    """Once their list was refused; other kinds are waited for, and a kind that can be read is read."""
    caplog.set_level("INFO")
    for path in ("labelidentities", "services"):
        api.faults.add(Fault(kind=FaultKind.STATUS, code=code, verbs=("list",), path=path))
    reader, cache = informers(Kind.LABEL_IDENTITY, Kind.SERVICE, Kind.CLUSTER_CLAIM)
    until(lambda: all(state.restarts for state in reader.state() if state.kind is not Kind.CLUSTER_CLAIM))
    until(lambda: Kind.CLUSTER_CLAIM not in cache.unsynced(Side.LOCAL))
    assert cache.unsynced(Side.LOCAL) == {Kind.LABEL_IDENTITY, Kind.SERVICE}
    reader.do_without_missing()
    assert cache.unsynced(Side.LOCAL) == {Kind.SERVICE}
    reader.do_without_missing()
    reports = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [entry for entry in reports if entry[1].endswith("assuming none")] == [report]


def test_a_kind_whose_list_fails_in_another_way_is_waited_for(
    api: ApiServer, informers: Callable[..., tuple[LocalInformers, Cache]]
) -> None:
    """Its objects may be there: taking it for empty would delete what follows from them."""
    api.faults.add(Fault(kind=FaultKind.STATUS, code=500, verbs=("list",), path="labelidentities"))
    reader, cache = informers(Kind.LABEL_IDENTITY)
    until(lambda: any(state.restarts for state in reader.state()))
    reader.do_without_missing()
    assert cache.unsynced(Side.LOCAL) == {Kind.LABEL_IDENTITY}


def test_kinds_of_the_cluster_set_are_read_in_its_namespace(
    api: ApiServer, local: Objects, informers: Callable[..., tuple[LocalInformers, Cache]]
) -> None:
    """Services of all namespaces are exported; a leader's controller has no namespace, and reads all."""
    for kind in (Kind.GATEWAY, Kind.SERVICE):
        local.put(kind, "own")
        local.put(kind, "other", COMMON_AREA)
    for namespace, gateways in ((NAMESPACE, 1), ("", 2)):
        _, cache = informers(Kind.GATEWAY, Kind.SERVICE, namespace=namespace)
        until(partial(cache.synced, Side.LOCAL))
        assert cache.count(Side.LOCAL, Kind.GATEWAY) == gateways
        assert cache.count(Side.LOCAL, Kind.SERVICE) >= 2
