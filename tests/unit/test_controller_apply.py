"""What is written of the difference between what an object should be and what is there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.apiserver.storage.merge import merge_patch
from mcagent.controller.machinery.apply import RefusedStepError, Verb, Write, plan
from mcagent.controller.machinery.reconciler import Ref, Refusal, Wanted
from mcagent.model.api.base import ApiObject, Condition
from mcagent.model.api.kubernetes import ConfigMap
from mcagent.model.objects import Kind
from tests.worlds.memory_objects import content_patch

REF = Ref(kind=Kind.CONFIG_MAP, namespace="ns", name="x")
_KEYS = st.sampled_from(["a", "b", "c", "d"])
_SCALARS = st.one_of(st.booleans(), st.integers(-3, 3), st.sampled_from(["", "v", "w"]))
_PRESENT = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=3)),
    max_leaves=8,
)
_WANTED = st.recursive(
    st.one_of(st.none(), _SCALARS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=3)),
    max_leaves=8,
)
_CONTENT = st.dictionaries(st.sampled_from(["spec", "data", "extra"]), st.dictionaries(_KEYS, _WANTED, max_size=3))


def carried_out(write: Write, present: Any) -> Any:
    """Return what an API server has after a write (None: nothing)."""
    if write.verb is Verb.DELETE:
        return None
    if write.verb is Verb.CREATE:
        return copy.deepcopy(write.body) | {
            "metadata": {**write.body["metadata"], "uid": "u", "resourceVersion": "1"}
        }
    after = merge_patch(present, write.body)
    after["metadata"]["resourceVersion"] = str(int(present["metadata"]["resourceVersion"]) + 1)
    return after


def settled(wanted: Wanted | Ref, present: Any) -> tuple[Any, list[Write]]:
    """Write until nothing is left to do; fail when that takes more than content and status."""
    writes: list[Write] = []
    while (write := plan(wanted, present)) is not None:
        assert len(writes) < 2, writes
        writes.append(write)
        present = carried_out(write, present)
    return present, writes


def there(**content: Any) -> dict[str, Any]:
    """Return an object as a server has it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
        **content,
    }


def covers(wanted: Any, present: Any) -> bool:
    """Tell whether all that is wanted is there, written differently than in the code under test."""
    if isinstance(wanted, dict):
        if not isinstance(present, dict):
            return present is None and all(covers(value, None) for value in wanted.values())
        return all(covers(value, present.get(key)) for key, value in wanted.items())
    if wanted is None:
        return present is None
    if isinstance(wanted, list):
        return (not wanted and present is None) or (isinstance(present, list) and len(present) == len(wanted))
    return type(wanted) is type(present) and wanted == present


@given(content=_CONTENT, status=st.none() | st.dictionaries(_KEYS, _WANTED, max_size=3))
def test_after_a_create_nothing_is_left_to_do(content: dict[str, Any], status: dict[str, Any] | None) -> None:
    """An object that was made from what is wanted is what is wanted."""
    wanted = Wanted(ref=REF, body=content_patch(**content, status=status or {}))
    after, writes = settled(wanted, None)
    assert writes[0].verb is Verb.CREATE
    assert all(covers(value, after.get(part)) for part, value in content.items())
    assert covers(status or {}, after.get("status"))


@given(content=_CONTENT, present=st.dictionaries(st.sampled_from(["spec", "data", "extra", "theirs"]), _PRESENT))
def test_after_a_patch_nothing_is_left_to_do(content: dict[str, Any], present: dict[str, Any]) -> None:
    """Whatever was there, one patch makes it what is wanted, and names the version that was looked at."""
    before = there(**present)
    after, writes = settled(Wanted(ref=REF, body=content_patch(**content)), copy.deepcopy(before))
    assert len(writes) <= 1
    assert all(covers(value, after.get(part)) for part, value in content.items())
    if writes:
        assert writes[0].verb is Verb.PATCH
        assert writes[0].body["metadata"]["resourceVersion"] == "7"
    else:
        assert after == before


@given(
    content=_CONTENT,
    present=st.dictionaries(st.sampled_from(["spec", "data"]), st.dictionaries(_KEYS, _PRESENT, max_size=4)),
    theirs=_PRESENT,
)
def test_what_others_added_stays(content: dict[str, Any], present: dict[str, Any], theirs: Any) -> None:
    """Fields that are not wanted are as they were, at every depth."""
    before = there(**present, theirs=theirs)
    before["metadata"]["labels"] = {"theirs": "1"}
    after, _ = settled(Wanted(ref=REF, body=content_patch(**content)), copy.deepcopy(before))
    assert after["theirs"] == theirs
    assert after["metadata"]["labels"] == {"theirs": "1"}
    for part, fields in present.items():
        for key, value in fields.items():
            if key not in content.get(part, {}):
                assert after[part][key] == value


def test_only_what_differs_is_sent() -> None:
    """A patch holds the changed field, the removed one, and nothing that is right."""
    present = there(data={"a": "1", "b": "2", "c": "3"})
    write = plan(Wanted(ref=REF, body=content_patch(data={"a": "1", "b": "9", "c": None, "d": None})), present)
    assert write is not None
    assert write.body == {"metadata": {"resourceVersion": "7"}, "data": {"b": "9", "c": None}}


def test_identity_in_a_body_is_never_sent() -> None:
    """What names an object comes from its Ref alone."""
    body = content_patch(metadata={"name": "other", "uid": "z", "resourceVersion": "1"}, data={"a": "1"})
    made = plan(Wanted(ref=REF, body=body), None)
    assert made is not None
    assert made.body == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": "ns"},
        "data": {"a": "1"},
    }
    patch = plan(Wanted(ref=REF, body=body), there())
    assert patch is not None
    assert patch.body == {"metadata": {"resourceVersion": "7"}, "data": {"a": "1"}}


def test_the_status_has_a_write_of_its_own() -> None:
    """Content first, then status through its subresource, each with its version."""
    wanted = Wanted(ref=REF, body=content_patch(spec={"a": 1}, status={"ready": True}))
    after, writes = settled(wanted, there())
    assert [write.verb for write in writes] == [Verb.PATCH, Verb.STATUS]
    assert writes[1].body == {"metadata": {"resourceVersion": "8"}, "status": {"ready": True}}
    assert after["status"] == {"ready": True}


def test_one_that_must_not_be_made_is_not() -> None:
    """With `create` False an object that is not there stays away."""
    assert plan(Wanted(ref=REF, body=content_patch(data={}), create=False), None) is None


def test_a_delete_names_what_was_looked_at() -> None:
    """Uid and version are preconditions; what is gone or going is left alone."""
    write = plan(REF, there())
    assert write is not None
    assert write.body["preconditions"] == {"uid": "u", "resourceVersion": "7"}
    assert plan(REF, None) is None
    going = there()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert plan(REF, going) is None


@pytest.mark.parametrize(
    ("wanted", "present", "same"),
    [
        ([{"port": 80}], [{"port": 80, "protocol": "TCP", "targetPort": 80}], True),
        ([{"port": 80}], [{"port": 80, "protocol": "UDP"}], False),
        ([{"port": 80}], [{"port": 80, "targetPort": 8080}], False),
        ([{"port": 80}], [{"port": 80, "appProtocol": "h2c"}], False),
        ([{"port": 80}], [{"port": 80, "name": "", "nodePort": 30001}], True),
        ([{"port": 80}], [{"port": 80}, {"port": 81}], False),
        ([{"port": 1}], [{"port": True}], False),
        ([{"port": 80, "protocol": "UDP"}], [{"port": 80, "protocol": "TCP"}], False),
        ([{"port": 80, "targetPort": "http"}], [{"port": 80, "targetPort": 80}], False),
        ([{"port": 80, "name": "", "appProtocol": None}], [{"port": 80}], True),
        ([{"port": 80}], [{"port": 80, "appProtocol": None}], True),
        ([{"port": 80}, {"port": 81}], [{"port": 81}, {"port": 80}], False),
        ([{"port": 80}], [80], False),
        ([{"port": 80}], {"port": 80}, False),
        ([], None, True),
        ([], [], True),
        ([], [{"port": 80}], False),
        ([{"port": 80}], None, False),
    ],
)
def test_lists_are_owned_whole_but_for_defaults_of_ports(wanted: Any, present: Any, same: bool) -> None:
    """What the server fills in by itself is no difference; everything else in a list is, and it is sent whole."""
    fields = {} if present is None else {"ports": present}
    write = plan(Wanted(ref=REF, body=content_patch(spec={"ports": wanted})), there(spec=fields))
    assert (write is None) is same
    if write is not None:
        assert write.body["spec"] == {"ports": wanted}


@pytest.mark.parametrize(
    ("desired", "present", "same"),
    [
        ([{"name": "a"}], [{"name": "a", "protocol": "TCP"}], False),
        ([{"name": "a"}], [{"name": "a", "nodePort": 1}], False),
        ([{"name": "a", "zone": ""}], [{"name": "a"}], True),
        ([{"name": "a"}], [{"name": "a", "zone": ""}], True),
        ([{"name": "a"}], [{"name": "a", "ready": False}], False),
        ([{"name": "a", "ready": False}], [{"name": "a"}], False),
        ([{"name": "a", "ready": True}], [{"name": "a", "ready": 1}], False),
        ([{"name": "a", "weight": 1}], [{"name": "a", "weight": 1.0}], True),
        (
            [{"name": "a", "ports": [{"port": 80}]}],
            [{"name": "a", "ports": [{"port": 80, "protocol": "TCP"}]}],
            True,
        ),
        ([{"name": "a", "ports": [{"port": 80}]}], [{"name": "a", "ports": [{"port": 81}]}], False),
        ([["a"], ["b"]], [["a"], ["c"]], False),
        ([["a"], []], [["a"], None], True),
        (["a", "b"], ["b", "a"], False),
        (["a"], "a", False),
    ],
)
def test_defaults_of_ports_count_as_such_in_lists_of_ports_only(desired: Any, present: Any, same: bool) -> None:
    """At any depth; no value and an empty text are equal there, False and no value are not."""
    write = plan(Wanted(ref=REF, body=content_patch(spec={"ends": desired})), there(spec={"ends": present}))
    assert (write is None) is same


@pytest.mark.parametrize(
    ("desired", "present", "sent"),
    [
        ({"a": {"b": None, "c": {}}}, {}, None),
        ({"a": {"b": None}}, {"a": 5}, {"a": {}}),
        ({"a": {"b": None, "c": 1}}, {}, {"a": {"c": 1}}),
        ({"a": {"b": None, "c": 1}}, {"a": {"b": 0, "c": 1}}, {"a": {"b": None}}),
        ({"a": {"b": {"c": None}}}, {"a": {"b": {"c": "", "d": 1}}}, {"a": {"b": {"c": None}}}),
        ({"a": [{"b": None, "c": "null"}, None]}, {}, {"a": [{"c": "null"}, None]}),
        ({"a": ""}, {}, {"a": ""}),
        ({"a": False}, {}, {"a": False}),
        ({"a": 0}, {"a": False}, {"a": 0}),
        ({"a": {"b": 1}}, {"a": [1]}, {"a": {"b": 1}}),
        ({}, {"a": 1}, None),
    ],
)
def test_a_patch_is_a_merge_patch(desired: Any, present: Any, sent: Any) -> None:
    """Null removes a field that is there, and is sent for no other; empty mappings need not be there."""
    write = plan(Wanted(ref=REF, body=content_patch(spec=desired)), there(spec=present))
    if sent is None:
        assert write is None
    else:
        assert write is not None
        assert write.body == {"metadata": {"resourceVersion": "7"}, "spec": sent}


def test_nothing_is_wanted_of_an_object_that_has_no_such_part() -> None:
    """A part without values is not written; one with values is written whole."""
    assert plan(Wanted(ref=REF, body=content_patch(spec={"a": None, "b": {}})), there()) is None
    write = plan(Wanted(ref=REF, body=content_patch(spec={"a": None, "b": 1})), there(spec=None))
    assert write is not None
    assert write.body["spec"] == {"b": 1}


def test_labels_are_patched_together_with_the_version() -> None:
    """Labels of others are not in the patch; a label that must be absent is."""
    present = there()
    present["metadata"]["labels"] = {"theirs": "1", "old": "2", "right": "3"}
    labels = {"new": "1", "old": None, "right": "3"}
    write = plan(Wanted(ref=REF, body=content_patch(metadata={"labels": labels})), present)
    assert write is not None
    assert write.body == {"metadata": {"labels": {"new": "1", "old": None}, "resourceVersion": "7"}}


def test_an_object_without_a_namespace_is_created_without_one() -> None:
    """A cluster-scoped kind has no namespace, whatever its Ref has; null is not sent in a creation."""
    ref = Ref(kind=Kind.CLUSTER_NETWORK_POLICY, namespace="ns", name="strict")
    metadata = {"labels": {"a": "1", "b": None}}
    write = plan(Wanted(ref=ref, body=content_patch(metadata=metadata, extra=None, data=[{"a": None}])), None)
    assert write == Write(
        verb=Verb.CREATE,
        ref=ref,
        body={
            "apiVersion": "crd.antrea.io/v1beta1",
            "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "strict", "labels": {"a": "1"}},
            "data": [{}],
        },
    )


def test_a_creation_has_no_status() -> None:
    """It follows through the subresource."""
    write = plan(Wanted(ref=REF, body=content_patch(data={"a": "1"}, status={"ready": True})), None)
    assert write is not None
    assert "status" not in write.body


def test_a_delete_has_the_preconditions_that_the_object_has() -> None:
    """An object without uid, of a server for tests, is deleted by its version."""
    present = there()
    del present["metadata"]["uid"]
    write = plan(REF, present)
    assert write is not None
    assert write.verb is Verb.DELETE
    assert write.ref == REF
    assert write.body == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"resourceVersion": "7"},
    }


READY = Condition(type="Ready", status="True", reason="Done", message="ok")
THEIRS = {"type": "Theirs", "status": "True", "message": None}


def conditions_written(conditions: dict[str, Condition | None], *present: Any) -> Any:
    """Return the conditions that are written over these; None: nothing is written."""
    write = plan(Wanted(ref=REF, conditions=conditions), there(status={"conditions": list(present), "n": 1}))
    if write is None:
        return None
    assert write.verb is Verb.STATUS
    assert list(write.body["status"]) == ["conditions"]
    return write.body["status"]["conditions"]


def test_own_conditions_replace_those_of_their_types() -> None:
    """Own ones first, then those of others as they are; None removes a type, and nothing else does."""
    ready = {"type": "Ready", "status": "True", "reason": "Done", "message": "ok"}
    old = {**ready, "status": "False"}
    assert conditions_written({"Ready": READY}, THEIRS, old) == [ready, THEIRS]
    assert conditions_written({"Ready": READY}, ready, THEIRS) is None
    assert conditions_written({"Ready": None}, old, THEIRS) == [THEIRS]
    assert conditions_written({"Ready": None}, THEIRS) is None
    assert conditions_written({"Ready": READY, "Other": None}, {"type": "Other"}) == [ready]
    assert conditions_written({}, old, THEIRS) is None


def test_conditions_are_written_beside_other_fields_of_a_status() -> None:
    """Of an object that has no status yet, too."""
    step = Wanted(ref=REF, body=content_patch(status={"count": 1}), conditions={"Ready": READY})
    write = plan(step, there())
    assert write is not None
    assert write.body["status"] == {
        "count": 1,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Done", "message": "ok"}],
    }


def refusing(refusal: Refusal | None, judged: list[ApiObject]) -> Wanted:
    """Return a step that refuses every present object with this."""

    def refuse(present: ApiObject) -> Refusal | None:
        judged.append(present)
        return refusal

    return Wanted(ref=REF, body=content_patch(data={"a": "1"}), refuse=refuse)


def test_an_object_that_is_refused_is_not_written() -> None:
    """The reason is that of the refusal, which judges the object that is present; an absent one is created."""
    judged: list[ApiObject] = []
    step = refusing(Refusal(reason="another user created it"), judged)
    with pytest.raises(RefusedStepError, match=r"^another user created it$"):
        plan(step, there(data={"b": "2"}))
    (present,) = judged
    assert isinstance(present, ConfigMap)
    assert present.data == {"b": "2"}
    write = plan(step, None)
    assert write is not None
    assert write.verb is Verb.CREATE
    assert len(judged) == 1
    accepted = plan(refusing(None, judged), there())
    assert accepted is not None
    assert accepted.body["data"] == {"a": "1"}


def test_a_refusal_writes_its_own_body_first() -> None:
    """Then the object is refused; what was wanted is not written."""
    step = refusing(Refusal(reason="in use", body=content_patch(data={"claimed": "no"})), [])
    write = plan(step, there(data={"claimed": "yes"}))
    assert write is not None
    assert write.verb is Verb.PATCH
    assert write.body == {"metadata": {"resourceVersion": "7"}, "data": {"claimed": "no"}}
    with pytest.raises(RefusedStepError, match="in use"):
        plan(step, there(data={"claimed": "no"}))
