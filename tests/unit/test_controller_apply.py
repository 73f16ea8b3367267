"""What is written of the difference between what an object should be and what is there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.apiserver.storage.merge import merge_patch
from mcagent.controller.machinery.apply import Verb, Write, plan
from mcagent.controller.machinery.reconciler import Ref, Wanted
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
        ([], None, True),
        ([], [{"port": 80}], False),
    ],
)
def test_lists_are_owned_whole_but_for_defaults_of_ports(wanted: Any, present: Any, same: bool) -> None:
    """What the server fills in by itself is no difference; everything else in a list is."""
    fields = {} if present is None else {"ports": present}
    write = plan(Wanted(ref=REF, body=content_patch(spec={"ports": wanted})), there(spec=fields))
    assert (write is None) is same
