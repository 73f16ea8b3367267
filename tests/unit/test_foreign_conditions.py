"""Conditions of other controllers stay as they are, on each kind of object whose conditions are shared."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.leader.exports.status import failed, succeeded
from mcagent.controller.machinery.apply import Verb, plan
from mcagent.controller.machinery.reconciler import Json, Wanted
from mcagent.controller.member.cluster_set import MemberClusterSet
from mcagent.controller.member.services.export_conditions import export_status, withdrawn
from mcagent.controller.member.services.service_export import ServiceExports
from mcagent.kube.source import RawObject
from mcagent.model.api.base import ApiObject, as_json
from mcagent.model.api.multicluster import ApiServiceExport, ResourceExport
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as
from tests.worlds.control_view import Controller
from tests.worlds.leader_world import AREA, Leader
from tests.worlds.leader_world import SET as LEADER_SET
from tests.worlds.member_world import HOME, SET, export_of, member, service, settings

NOW = 1_700_000_000.0
TEXTS = st.sampled_from(["", "x", "2020-01-01T00:00:00Z"]) | st.text(max_size=4)
FOREIGN = st.fixed_dictionaries(
    {"type": st.sampled_from(["example.io/Synced", "Other", ""])},
    optional={
        "status": st.sampled_from(["", "True", "False", "Unknown"]),
        "reason": TEXTS,
        "message": TEXTS,
        "lastTransitionTime": TEXTS,
        "observedGeneration": st.sampled_from([0, 1, 2**63 - 1]),
        "unknown": st.sampled_from([None, "", 0, False, {}, [], {"a": None, "": [None, {"b": ""}]}]),
    },
)
OWN = st.builds(
    lambda kind, fields: {**fields, "type": kind},
    st.sampled_from(["Valid", "Ready", "Conflict", "mcagent.io/ExportAddress"]),
    FOREIGN,
)
CONDITIONS = st.lists(FOREIGN | OWN, max_size=4, unique_by=lambda entry: entry["type"])
EMPTY_MESSAGE = {
    "type": "example.io/Synced",
    "status": "True",
    "reason": "Synced",
    "message": "",
    "lastTransitionTime": "2020-01-01T00:00:00Z",
    "observedGeneration": 0,
}


def with_conditions(raw: RawObject, conditions: list[Json]) -> RawObject:
    """Return an object with these conditions, as an API server has it."""
    meta = {**raw["metadata"], "uid": "u", "resourceVersion": "1", "generation": 1}
    return {**raw, "metadata": meta, "status": {"conditions": copy.deepcopy(conditions)}}


def foreign(conditions: list[Json], *own: str) -> list[Json]:
    """Return the conditions of other types than `own`."""
    return [entry for entry in conditions if entry["type"] not in own]


def check_status_write(step: Wanted, present: ApiObject, left: list[Json]) -> None:
    """Assert that a status is written once, with these conditions of others."""
    write = plan(step, as_json(present))
    assert write is not None
    assert write.verb is Verb.STATUS
    conditions = write.body["status"]["conditions"]
    assert conditions[len(conditions) - len(left) :] == left
    raw = {**as_json(present), "status": {**write.body["status"], "conditions": conditions}}
    assert plan(step, as_json(read_as(type(present), raw))) is None


@given(conditions=CONDITIONS)
def test_foreign_conditions_are_written_unchanged(conditions: list[Json]) -> None:
    """With each status of a ServiceExport, whichever fields they have, empty or null or not, known or not."""
    export = read_as(ApiServiceExport, with_conditions(export_of("web"), conditions))
    assert export.fault is None
    assert [*as_json(export).get("status", {}).get("conditions", [])] == conditions
    refusal = ("NoService", f"there is none {NOW}")
    own = ("Valid", "Ready", "Conflict", "mcagent.io/ExportAddress")
    faulty = read_as(ApiServiceExport, with_conditions({**export_of("web"), "spec": 7}, conditions))
    for written in (export, faulty):
        check_status_write(export_status(written, refusal, "", [], NOW), written, foreign(conditions, *own))
    step = withdrawn(export, NOW)
    if step is not None:
        check_status_write(step, export, foreign(conditions, *own[1:]))


@given(conditions=CONDITIONS)
def test_the_leader_writes_foreign_conditions_unchanged(conditions: list[Json]) -> None:
    """In a ResourceExport, of which it owns three types."""
    raw = {"kind": "ResourceExport", "metadata": {"name": "x", "namespace": "mcs"}, "spec": {}}
    export = read_as(ResourceExport, with_conditions(raw, conditions))
    own = ("Succeeded", "Failure", "Conflict")
    check_status_write(failed(export, f"why {NOW}", NOW), export, foreign(conditions, *own))
    check_status_write(succeeded(export, NOW, f"left out {NOW}"), export, foreign(conditions, *own))


def test_values_of_wrong_types_in_foreign_conditions_stay() -> None:
    """They are not read, and do not keep the other conditions from being read."""
    entry: Any = {"type": "Other", "status": 7, "message": None, "reason": ["x"], "observedGeneration": "1"}
    export = read_as(ApiServiceExport, with_conditions(export_of("web"), [entry]))
    check_status_write(export_status(export, ("NoService", "there is none"), "", [], NOW), export, [entry])
    (condition,) = export.status.conditions
    assert (condition.type, condition.status, condition.message, condition.reason) == ("Other", "", "", "")


def test_an_export_with_a_foreign_condition_without_a_message_gets_its_status() -> None:
    """The CRD requires the message: what is written has it, and nothing is written a second time."""
    view = member()
    view.local.put(service("web"))
    view.local.put({**export_of("web"), "status": {"conditions": [EMPTY_MESSAGE]}})

    def required(kind: Kind, _old: RawObject | None, new: RawObject | None) -> str:
        entries = ((new or {}).get("status") or {}).get("conditions", ()) if kind is Kind.SERVICE_EXPORT else ()
        fields = ("lastTransitionTime", "message", "reason", "status", "type")
        return "a field is required" if any(name not in entry for entry in entries for name in fields) else ""

    view.local.refuse = required
    controller = Controller(view, [ServiceExports(settings())])
    controller.settle()
    raw = view.local.get(Kind.SERVICE_EXPORT, "shop", "web") or {}
    conditions = {entry["type"]: entry for entry in raw["status"]["conditions"]}
    assert conditions["Valid"]["status"] == "True"
    assert conditions["example.io/Synced"] == EMPTY_MESSAGE
    view.local.writes.clear()
    controller.settle()
    assert view.local.writes == []


def test_the_cluster_set_of_a_leader_keeps_foreign_conditions() -> None:
    """A condition with null, too; its own are written, and nothing a second time."""
    world = Leader("east")
    null = {**EMPTY_MESSAGE, "message": None}
    world.api.change(Kind.CLUSTER_SET, AREA, LEADER_SET, {"status": {"conditions": [null]}})
    world.settle()
    raw = world.api.get(Kind.CLUSTER_SET, AREA, LEADER_SET) or {}
    kinds = [entry["type"] for entry in raw["status"]["conditions"]]
    assert kinds == ["Ready", "Consistent", "CIDRsLimited", "Healthy", EMPTY_MESSAGE["type"]]
    assert raw["status"]["conditions"][-1] == null
    world.api.writes.clear()
    world.settle()
    assert world.api.writes == []


def test_the_cluster_set_of_a_member_keeps_foreign_conditions() -> None:
    """Its status is the member's, conditions of other types are not."""
    view = member()
    view.local.change(Kind.CLUSTER_SET, HOME, SET, {"status": {"conditions": [EMPTY_MESSAGE]}})
    Controller(view, [MemberClusterSet()]).settle()
    raw = view.local.get(Kind.CLUSTER_SET, HOME, SET) or {}
    kinds = [entry["type"] for entry in raw["status"]["conditions"]]
    assert kinds[0] == "Ready"
    assert raw["status"]["conditions"][kinds.index(EMPTY_MESSAGE["type"])] == EMPTY_MESSAGE
