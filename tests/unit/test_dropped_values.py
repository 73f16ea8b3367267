"""Values that an API server drops are sent once, and reported."""

from __future__ import annotations

import copy
from typing import Any

from mcagent.controller.machinery.apply import Verb, dropped_values, plan
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.reconciler import Ref, Side, Wanted
from mcagent.controller.machinery.written import DROPPED_FOR, WrittenObjects
from mcagent.model.objects import Kind
from tests.worlds.memory_objects import content_patch

REF = Ref(side=Side.LEADER, kind=Kind.RESOURCE_EXPORT, namespace="area", name="west-clusterinfo")
META = {"name": "west-clusterinfo", "uid": "u", "resourceVersion": "1"}
KEY = {"publicKey": "k", "port": 51820}


def infos_with(**fields: Any) -> list[dict[str, Any]]:
    """Return the gateways of an export."""
    return [{"gatewayIP": "192.168.1.1", "wireGuard": {**KEY, **fields}}]


def desired_export(**fields: Any) -> Wanted:
    """Return an export with fields that old CRDs drop, and a status."""
    spec = {"infos": infos_with(**fields), "new": {"a": 1}, "id": "west"}
    return Wanted(ref=REF, body=content_patch(spec=spec, status={"x": "y"}))


def pruned(body: Any) -> Any:
    """Return what a server keeps that knows neither spec.new nor spec.infos[].wireGuard."""
    stored = copy.deepcopy(body)
    stored["spec"].pop("new", None)
    for info in stored["spec"].get("infos", ()):
        info.pop("wireGuard", None)
    return stored | {"metadata": META}


def after_creation() -> tuple[WrittenObjects, Any]:
    """Create the object: return the values that the server dropped, and the stored object."""
    memory = WrittenObjects(Cache({}))
    first = plan(desired_export(), None)
    assert first is not None
    assert first.verb is Verb.CREATE
    stored = pruned(first.body)
    remaining = plan(desired_export(), stored)
    assert remaining is not None
    news = memory.add_dropped(REF, dropped_values(first.body, remaining.body, stored), stored, 1, 0.0)
    assert news == {"spec.infos[].wireGuard", "spec.new.a"}
    return memory, stored


def test_what_is_not_kept_is_not_sent_again() -> None:
    """After the creation only the status is left to write."""
    memory, stored = after_creation()
    write = plan(desired_export(), stored, memory.dropped(REF, stored, 1, 1.0))
    assert write is not None
    assert write.verb is Verb.STATUS
    assert plan(desired_export(), stored | {"status": {"x": "y"}}, memory.dropped(REF, stored, 1, 1.0)) is None
    assert memory.dropped_fields(Side.LEADER) == [
        "ResourceExport spec.infos[].wireGuard",
        "ResourceExport spec.new.a",
    ]
    assert memory.dropped_fields(Side.LOCAL) == []


def test_another_value_is_sent_and_so_is_what_somebody_changes() -> None:
    """A new key is news; so is a gateway that somebody else wrote."""
    memory, stored = after_creation()
    rotated = plan(desired_export(nextPublicKey="n"), stored, memory.dropped(REF, stored, 1, 1.0))
    assert rotated is not None
    assert list(rotated.body["spec"]) == ["infos"]
    changed = copy.deepcopy(stored)
    changed["spec"]["infos"][0]["gatewayIP"] = "192.168.1.66"
    mended = plan(desired_export(), changed, memory.dropped(REF, changed, 1, 1.0))
    assert mended is not None
    assert mended.body["spec"]["infos"] == infos_with()


def test_other_objects_and_other_leaders_are_asked_anew() -> None:
    """Nothing is known of an object that was made again, of another leader, or after an hour."""
    for uid, epoch, now in (("v", 1, 1.0), ("u", 2, 1.0), ("u", 1, DROPPED_FOR + 1)):
        memory, stored = after_creation()
        other = {**stored, "metadata": {**META, "uid": uid}}
        assert memory.dropped(REF, other, epoch, now) == {}
        assert memory.dropped_fields(Side.LEADER) == []
    memory, _ = after_creation()
    memory.prune(DROPPED_FOR + 1)
    assert memory.dropped_fields(Side.LEADER) == []


def test_a_value_that_was_not_in_the_write_may_be_sent() -> None:
    """Only what was sent is known not to be kept: what else is missing was changed meanwhile."""
    answer = {"metadata": META, "spec": {"a": 1}}
    assert dropped_values({"spec": {"a": 2}}, {"spec": {"b": 2, "a": 1}}, answer) == {}


def test_no_target_port_is_written_as_zero() -> None:
    """Leaders of Antrea up to 2.4 store targetPort 0 where a port has none: that is no difference."""
    body = {"spec": {"service": {"serviceSpec": {"ports": [{"name": "http", "port": 80}]}}}}
    stored: dict[str, Any] = {**copy.deepcopy(body), "metadata": META}
    stored["spec"]["service"]["serviceSpec"]["ports"][0]["targetPort"] = 0
    assert plan(Wanted(ref=REF, body=content_patch(**body)), stored) is None
