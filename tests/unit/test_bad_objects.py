"""Whatever an API server stores, nothing but the object itself suffers: every reader, reconciler and review."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcagent.agent.snapshot_store import SnapshotStore
from mcagent.controller.admin.listing import LISTINGS, rows
from mcagent.controller.admission import mutate, review
from mcagent.controller.leader.exports.header import BY_CLUSTER, BY_IMPORT
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.connection.membership import credentials, membership
from mcagent.controller.machinery.reconciler import Side
from mcagent.controller.member import member_reconcilers
from mcagent.controller.webhook.server import answer_of, read_review
from mcagent.core.compile import compile_desired
from mcagent.core.snapshot import ATTRIBUTE
from mcagent.kube.source import EventType, RawObject, WatchEvent
from mcagent.model.api.base import as_json
from mcagent.model.api.kubernetes import SecretData
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.errors import InputError
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as, read_object
from mcagent.model.parsing.document import CUT, MAX_DEPTH, decode, decode_noting_cuts, was_cut
from mcagent.supervised import attempt
from tests.properties import costly
from tests.worlds import agentworld, leader_imports, leader_world, member_world
from tests.worlds.admission_objects import OWN, SET, WORLD, sa
from tests.worlds.control_view import Controller
from tests.worlds.leader_world import AREA, Leader
from tests.worlds.memory_objects import START, typed
from tests.worlds.nasty import DEEP, VALUES, changed, paths, received, spoiled, text_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


def depth(value: Any) -> int:
    """Return how deep a value is nested, without recursion."""
    deepest, level = 0, [value]
    while level := [
        inner
        for item in level
        if isinstance(item, dict | list)
        for inner in (item.values() if isinstance(item, dict) else item)
    ]:
        deepest += 1
    return deepest


# --- decoding --------------------------------------------------------------------------------------------


@given(value=JSON)
def test_decoding_is_that_of_json(value: Any) -> None:
    """What is not too deep comes back as it was, brackets and quotes in strings included."""
    assert decode(json.dumps(value).encode()) == value
    assert decode_noting_cuts(json.dumps({"a": value}, ensure_ascii=False)) == ({"a": value}, False)


@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}"), ('[{"]":"\\"[",  "x":', "}]")])
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 700, 20_000])
def test_what_is_too_deep_is_cut(start: str, end: str, levels: int) -> None:
    """Only the inner part goes: what stands before and after it stays, and everything can be walked."""
    inner = start * levels + "1" + end * levels
    text = f'{{"items": [{{"a": "["}}, {{"b": {inner}, "c": "}}]"}}, {{"d": [1]}}]}}'
    value, cut = decode_noting_cuts(text.encode())
    assert cut
    assert was_cut(value)
    assert [set(item) for item in value["items"]] == [{"a"}, {"b", "c"}, {"d"}]
    assert value["items"][1]["c"] == "}]"
    assert depth(value) <= MAX_DEPTH
    assert value == decode(json.dumps(value).encode())


@pytest.mark.parametrize("levels", [MAX_DEPTH, 700])
@pytest.mark.parametrize("broken", ["[", "[]]", '["', "[}", '["\\"]'])
def test_what_is_no_json_is_refused(broken: str, levels: int) -> None:
    """However deep, text that is no JSON is a ValueError, as are NaN and Infinity."""
    for text in ("[" * levels + broken, broken + "]" * levels, "[NaN]", "[-Infinity]", b"\xff\xfe[\x00", b""):
        with pytest.raises(ValueError, match=r"."):
            decode(text)


def test_numbers_and_letters_that_nobody_has() -> None:
    """Half a surrogate pair, bytes that are no UTF-8 and endless integers become values that can be written."""
    text = b'{"a": "\\ud800 \\ud83d\\ude00 \\\\ud800", "b": "\xff", "c": ' + b"9" * 5000 + b', "a": "\\uDFFF"}'
    value = decode(text)
    assert value == {"a": "�", "b": "�", "c": value["c"]}
    assert isinstance(value["c"], str)
    assert decode(b'["\\ud83d\\ude00 \\\\ud800 \\ud800x"]') == ["😀 \\ud800 �x"]
    json.dumps(value, ensure_ascii=False).encode()


def test_decoding_takes_time_by_size_only() -> None:
    """Half a megabyte of brackets, or more of backslashes, costs about what other text costs."""
    worst = (
        "[" * 250_000 + "]" * 250_000,
        '[{"":' * 60_000 + "1" + "}]" * 60_000,
        '["' + "\\\\" * 750_000 + '"]',
    )
    began = time.process_time()
    for text in worst:
        decode(text)
    assert time.process_time() - began < 5.0


# --- the agent -------------------------------------------------------------------------------------------

AGENT: Sequence[RawObject] = (
    agentworld.node(),
    agentworld.gateway(),
    agentworld.cluster(1),
    agentworld.cluster(2),
    agentworld.raw(
        Kind.SERVICE,
        "web",
        spec={"clusterIP": "10.96.0.8", "clusterIPs": ["10.96.0.8"], "ports": [{"name": "http", "port": 80}]},
    ),
    agentworld.raw(Kind.SERVICE_EXPORT, "web"),
    agentworld.raw(
        Kind.ENDPOINT_SLICE,
        "web-1",
        addressType="IPv4",
        endpoints=[{"addresses": ["10.10.1.5"], "conditions": {"ready": True}, "nodeName": "a1"}],
        ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
    )
    | {
        "metadata": {
            "name": "web-1",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "web"},
        }
    },
)
# The same under another name: what is spoiled. Each is younger than all others.
AGENT_BAD: Sequence[RawObject] = (
    agentworld.node("zz", 77),
    agentworld.gateway("zz", 77),
    agentworld.cluster(77),
    agentworld.raw(Kind.POD, "zz", spec={"nodeName": "a1"}, status={"podIPs": [{"ip": "10.10.1.9"}]}),
    agentworld.raw(Kind.SERVICE, "zz", spec={"clusterIP": "10.96.0.9", "ports": [{"port": 80}]}),
    agentworld.raw(Kind.SERVICE_EXPORT, "zz"),
    changed(AGENT[6], ("metadata", "name"), "zz"),
)


def programmed(*bad: RawObject) -> dict[str, Any]:
    """Return the units that a Node programs, by name, with more objects than the good ones."""
    store = SnapshotStore(lambda: None)
    for kind in Kind:
        if kind in ATTRIBUTE:
            agentworld.listed(store, kind, [received(obj) for obj in AGENT if obj["kind"] == kind])
    for obj in bad:
        kind = Kind(obj["kind"])
        for event_type in (EventType.ADDED, EventType.MODIFIED):
            store.apply(kind, WatchEvent(type=event_type, object=read_object(kind, received(obj))))
    config = Config(node_name="a1", cluster_id="home")
    return dict(compile_desired(store.take(), Facts(), config).desired.fragments)


@costly
@given(bad=st.sampled_from(AGENT_BAD).flatmap(spoiled))
def test_an_agent_goes_on(bad: RawObject) -> None:
    """What it programs for other clusters and Services does not change by a bad object."""
    alone, beside = programmed(), programmed(bad)
    units = [name for name in alone if name.startswith(("cluster/", "service/"))]
    assert len(units) == 3
    for name in units:
        assert beside[name].resources == alone[name].resources


# --- the leader ------------------------------------------------------------------------------------------

LEADER_BAD: Sequence[RawObject] = (
    leader_world.service("mallory", "evil/web"),
    leader_world.endpoints("mallory", ["10.9.0.1"], "evil/web"),
    leader_world.cluster_info("mallory", "10.99.0.0/16", ["10.50.0.0/16"]),
    leader_world.export("mallory", "AntreaClusterNetworkPolicy", "mallory-acnp", {"clusterNetworkPolicy": {}}),
    leader_world.export("mallory", "LabelIdentity", "mallory-label", {"labelIdentity": {"normalizedLabel": "a"}}),
    leader_world.announce("mallory", START),
)


def merged(*bad: RawObject) -> dict[str, Any]:
    """Return what a leader makes of the exports of east and west beside bad objects."""
    leader = Leader("east", "west")
    for number, cluster in enumerate(("east", "west")):
        leader.put(leader_world.cluster_info(cluster, f"10.{97 + number}.0.0/16"))
        leader.put(leader_world.service(cluster), leader_world.endpoints(cluster, [f"10.{97 + number}.0.1"]))
    leader.clock.forward(60)
    for obj in bad:
        leader.put(received(obj))
    leader.settle()
    leader.controller.due()
    leader.controller.run()
    objects = {key: obj for key, obj in leader.api.objects().items() if "mallory" not in str(key)}
    return {
        str(key): (obj.get("spec"), obj.get("status") if "Export" in key[0] else None)
        for key, obj in objects.items()
        if key[0] in (Kind.RESOURCE_IMPORT, Kind.RESOURCE_EXPORT) and "evil" not in str(key)
    }


MERGED = merged()


@costly
@given(bad=st.sampled_from(LEADER_BAD).flatmap(spoiled))
def test_a_leader_goes_on(bad: RawObject) -> None:
    """Imports of others' exports, and what is said of these, do not change by a bad export or announcement."""
    assert any("default-nginx-endpoints" in key for key in MERGED)
    assert merged(bad) == MERGED


# --- the member ------------------------------------------------------------------------------------------

SERVICE_IMPORT = leader_imports.service_import(name="evil")
ENDPOINTS_IMPORT = leader_imports.endpoints_import("10.99.0.9", name="evil")
HEADLESS_SLICE = member_world.slice_of("evil-pods", "10.10.0.8")
HEADLESS_SLICE["endpoints"][0] |= {"hostname": "pods-0", "nodeName": "n1", "zone": "a"}
# Exported, too: what becomes of its slice depends on them.
HEADLESS: Sequence[RawObject] = (
    member_world.service("evil-pods", cluster_ip="None"),
    member_world.export_of("evil-pods"),
)
MEMBER_LOCAL: Sequence[RawObject] = (
    HEADLESS_SLICE,
    member_world.service("evil", cluster_ip="10.96.7.9"),
    member_world.slice_of("evil", "10.10.0.9"),
    member_world.export_of("evil"),
    member_world.node("zz", "172.18.0.99"),
    agentworld.gateway("zz", 99),
    agentworld.cluster(77),
)
MEMBER_LEADER: Sequence[RawObject] = (
    SERVICE_IMPORT,
    ENDPOINTS_IMPORT,
    leader_imports.cluster_info("mallory", "10.99.0.0/16", "10.50.0.0/16"),
)


def followed(*bad: RawObject) -> dict[str, Any]:
    """Return what a member makes, on both sides, of what is its own beside bad objects."""
    view = member_world.member()
    north = member_world.north_of(view)
    view.local.put(member_world.node("n1", "172.18.0.1"))
    for obj in (
        member_world.service("web"),
        member_world.slice_of("web", "10.10.0.5"),
        member_world.export_of("web"),
        *HEADLESS,
    ):
        view.local.put(obj)
    north.put(leader_imports.cluster_info("west", "10.98.0.0/16", "10.30.0.0/16"))
    north.put(leader_imports.service_import(name="far"))
    north.put(leader_imports.endpoints_import("10.98.0.9", name="far"))
    controller = Controller(view, member_reconcilers(member_world.settings()))
    controller.settle()  # ClusterIPs are given in the order in which they are asked for
    for obj in bad:
        api = north if obj in MEMBER_LEADER or obj["kind"] == "ResourceImport" else view.local
        api.put(received(obj))
    controller.settle()
    controller.due()
    controller.run()
    return {
        f"{side} {key}": {name: value for name, value in obj.items() if name != "metadata"}
        for side, api in (("local", view.local), ("north", north))
        for key, obj in api.objects().items()
        if key[2].split("-")[0] not in ("evil", "zz", "mallory", "c77") and "evil" not in key[2]
        if key[0] not in (Kind.CLUSTER_SET, Kind.MEMBER_CLUSTER_ANNOUNCE, Kind.GATEWAY)
        if not (key[0] is Kind.RESOURCE_EXPORT and "clusterinfo" in key[2])
    }


FOLLOWED = followed()


@costly
@given(bad=st.sampled_from([*MEMBER_LOCAL, *MEMBER_LEADER]).flatmap(spoiled))
@example(bad=changed(HEADLESS_SLICE, ("endpoints", 0, "addresses", 0), "::ffff:10.0.0.1"))
def test_a_member_goes_on(bad: RawObject) -> None:
    """What it exports and imports otherwise does not change by a bad object, of its own cluster or the leader."""
    assert any("'east-shop-web-service'" in key for key in FOLLOWED)
    assert any("'antrea-mc-far'" in key or "'far'" in key for key in FOLLOWED)
    assert followed(bad) == FOLLOWED


# --- admission, tables, credentials ----------------------------------------------------------------------

REVIEWED: Sequence[RawObject] = (*LEADER_BAD, agentworld.gateway("zz"), leader_world.cluster_set(AREA, SET))


@given(
    new=st.sampled_from(REVIEWED).flatmap(spoiled),
    old=st.sampled_from(REVIEWED).flatmap(spoiled) | st.sampled_from([None, [], "x", *REVIEWED]),
    operation=st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT", 7, None, []]),
    info=st.fixed_dictionaries(
        {
            "username": st.sampled_from(
                [
                    sa("mcagent-agent", "kube-system"),
                    sa("east-sa"),
                    sa("admin-sa"),
                    "admin",
                    "",
                    None,
                    ["x"],
                    "x\n",
                ]
            ),
            "extra": st.sampled_from([None, [], {}, {"a": [None]}]),
        }
    ),
    place=st.none()
    | st.tuples(st.sampled_from(["kind", "userInfo", "namespace", "name"]), st.sampled_from(VALUES)),
)
def test_a_review_is_always_answered(
    new: RawObject, old: Any, operation: Any, info: RawObject, place: tuple[str, Any] | None
) -> None:
    """Whatever is asked, there is an answer in JSON, allowed or with a reason."""
    request: RawObject = {
        "uid": "u",
        "operation": operation,
        "kind": {"kind": new["kind"]},
        "namespace": AREA,
        "name": "x",
        "object": new,
        "oldObject": old,
        "userInfo": info,
    }
    if place is not None:
        request[place[0]] = place[1]
    body = text_of({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    read = read_review(body.encode())
    for decision in (review(read, WORLD, OWN), mutate(read)):
        answer = json.loads(json.dumps(answer_of(read, decision)))
        assert answer["response"]["allowed"] or answer["response"]["status"]["message"]


@pytest.mark.parametrize("command", sorted(LISTINGS))
@given(data=st.data())
@costly
def test_tables_show_any_object(command: str, data: st.DataObject) -> None:
    """`mcagent get` shows a bad object in one printable line of moderate length, beside the others."""
    good = {
        Kind.CLUSTER_SET: leader_world.cluster_set()
        | {
            "status": {
                "conditions": [{"type": "Ready"}],
                "clusterStatuses": [{"clusterID": "x", "conditions": []}],
            }
        },
        Kind.RESOURCE_EXPORT: LEADER_BAD[0] | {"status": {"conditions": [{"type": "Failure", "message": "x"}]}},
        Kind.RESOURCE_IMPORT: SERVICE_IMPORT | {"status": {"clusterStatuses": [{"clusterID": "x"}]}},
        Kind.SERVICE_EXPORT: member_world.export_of("x") | {"status": {"conditions": [{"type": "Valid"}]}},
        Kind.SERVICE_IMPORT: {
            "metadata": {"name": "x", "namespace": "shop"},
            "spec": {"type": "ClusterSetIP", "ips": ["10.96.0.9"], "ports": [{"port": 80, "protocol": "TCP"}]},
            "status": {"clusters": [{"cluster": "east"}]},
        },
        Kind.GATEWAY: agentworld.gateway() | {"status": {"links": [{"clusterID": "x", "live": 1, "tunnels": 2}]}},
        Kind.CLUSTER_INFO_IMPORT: agentworld.cluster(1),
        Kind.SERVICE_ACCOUNT: {"metadata": {"name": "x", "annotations": {}}, "extra": 1},
    }[LISTINGS[command].kind]
    bad = received(data.draw(spoiled(good)))
    for row in rows(command, [bad], 0.0):
        assert all(isinstance(cell, str) and (not cell or cell.isprintable()) for cell in row)
        assert all(len(cell) < 400 for cell in row)


@given(bad=spoiled({"data": {"token": "QQ==", "ca.crt": "QQ=="}}), spec=spoiled(member_world.cluster_set()))
def test_credentials_and_membership_are_refused_in_words(bad: RawObject, spec: RawObject) -> None:
    """A Secret or ClusterSet with anything in it is used, or refused with an InputError that is short."""
    secret, cluster_set = read_as(SecretData, received(bad)), typed(received(spec), Kind.CLUSTER_SET)
    for read in (lambda: credentials("Secret x", secret), lambda: membership([cluster_set])):
        _, error = attempt(read)
        assert error is None or (isinstance(error, InputError) and str(error).isprintable())
        assert len(str(error)) < 600


# --- the cache -------------------------------------------------------------------------------------------


@given(objects=st.lists(st.sampled_from(LEADER_BAD[:5]).flatmap(spoiled), max_size=4))
def test_a_cache_files_what_it_can(objects: list[RawObject]) -> None:
    """Objects come and go whatever is in them, and leave nothing behind."""
    cache = Cache({Side.LOCAL: [Kind.RESOURCE_EXPORT]}, [BY_CLUSTER, BY_IMPORT])
    sink = cache.sink(Side.LOCAL)
    stored = [typed(received(obj)) for obj in objects]
    sink.replace(Kind.RESOURCE_EXPORT, [])
    for event_type in EventType:
        for obj in stored:
            sink.apply(Kind.RESOURCE_EXPORT, WatchEvent(type=event_type, object=obj))
    assert cache.count(Side.LOCAL, Kind.RESOURCE_EXPORT) == 0
    assert not any(cache._stores[Side.LOCAL, Kind.RESOURCE_EXPORT].filed.values())


def test_what_nobody_reads_is_not_kept() -> None:
    """Fields that only fill memory are dropped, with whatever is nested in them; those that are read stay."""
    good = leader_world.service("mallory", "evil/web")
    wide = changed(changed(good, ("spec", "service", "serviceSpec", "x"), ["y"] * 1000), ("spec", "x"), {"a": 1})
    assert typed(received(wide)) == typed(received(good))
    decoded = as_json(typed(received(good)))["spec"]
    (port,), (sent,) = (spec["service"]["serviceSpec"]["ports"] for spec in (decoded, good["spec"]))
    assert port.items() >= sent.items()
    assert {**decoded, "service": None} == {**good["spec"], "service": None}


def test_the_corpus_has_what_it_says() -> None:
    """Spoiled objects are deeper than any stack, and every kind of place is among those that are spoiled."""
    assert text_of(VALUES[0]).count("[") == DEEP
    assert ("spec", "service", "serviceSpec", "ports", 0, "port") in set(paths(LEADER_BAD[0]))
    assert CUT in json.dumps(received({"a": VALUES[1]}))
    assert KINDS[Kind.RESOURCE_EXPORT].namespaced
