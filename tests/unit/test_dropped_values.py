"""Values that an API server drops are sent once, and reported."""

from __future__ import annotations

import copy
from typing import Any

from mcagent.controller.machinery.apply import Verb, dropped_values, plan
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.reconciler import Ref, Side, Wanted
from mcagent.controller.machinery.written import DROPPED_FOR, WrittenObjects
from mcagent.model.objects import Kind

REF = Ref(side=Side.LEADER, kind=Kind.RESOURCE_EXPORT, namespace="area", name="west-clusterinfo")
META = {"name": "west-clusterinfo", "uid": "u", "resourceVersion": "1"}
KEY = {"publicKey": "k", "port": 51820}


def wanted(**more: Any) -> Wanted:
    """Return an export with fields that old CRDs drop, and a status."""
    infos = [{"gatewayIP": "192.168.1.1", "wireGuard": {**KEY, **more}}]
    return Wanted(ref=REF, body={"spec": {"infos": infos, "new": {"a": 1}, "id": "west"}}, status={"x": "y"})


def pruned(body: Any) -> Any:
    """Return what a server keeps that knows neither spec.new nor spec.infos[].wireGuard."""
    found = copy.deepcopy(body)
    found["spec"].pop("new", None)
    for info in found["spec"].get("infos", ()):
        info.pop("wireGuard", None)
    return found | {"metadata": META}


def noted(present: Any = None) -> tuple[WrittenObjects, Any]:
    """Return what is known after the object was created, and what there is."""
    memory = WrittenObjects(Cache({}))
    first = plan(wanted(), present)
    assert first is not None
    assert first.verb is Verb.CREATE
    there = pruned(first.body)
    left = plan(wanted(), there)
    assert left is not None
    news = memory.add_dropped(REF, dropped_values(first.body, left.body, there), there, 1, 0.0)
    assert news == {"spec.infos[].wireGuard", "spec.new.a"}
    return memory, there


def test_what_is_not_kept_is_not_sent_again() -> None:
    """After the creation only the status is left to write."""
    memory, there = noted()
    write = plan(wanted(), there, memory.dropped(REF, there, 1, 1.0))
    assert write is not None
    assert write.verb is Verb.STATUS
    assert plan(wanted(), there | {"status": {"x": "y"}}, memory.dropped(REF, there, 1, 1.0)) is None
    assert memory.dropped_fields(Side.LEADER) == [
        "ResourceExport spec.infos[].wireGuard",
        "ResourceExport spec.new.a",
    ]
    assert memory.dropped_fields(Side.LOCAL) == []


def test_another_value_is_sent_and_so_is_what_somebody_changes() -> None:
    """A new key is news; so is a gateway that somebody else wrote."""
    memory, there = noted()
    rotated = plan(wanted(nextPublicKey="n"), there, memory.dropped(REF, there, 1, 1.0))
    assert rotated is not None
    assert list(rotated.body["spec"]) == ["infos"]
    changed = copy.deepcopy(there)
    changed["spec"]["infos"][0]["gatewayIP"] = "192.168.1.66"
    mended = plan(wanted(), changed, memory.dropped(REF, changed, 1, 1.0))
    assert mended is not None
    assert mended.body["spec"]["infos"] == wanted().body["spec"]["infos"]


def test_other_objects_and_other_leaders_are_asked_anew() -> None:
    """Nothing is known of an object that was made again, of another leader, or after an hour."""
    for uid, epoch, now in (("v", 1, 1.0), ("u", 2, 1.0), ("u", 1, DROPPED_FOR + 1)):
        memory, there = noted()
        other = {**there, "metadata": {**META, "uid": uid}}
        assert memory.dropped(REF, other, epoch, now) == {}
        assert memory.dropped_fields(Side.LEADER) == []
    memory, _ = noted()
    memory.prune(DROPPED_FOR + 1)
    assert memory.dropped_fields(Side.LEADER) == []


def test_a_value_that_was_not_in_the_write_may_be_sent() -> None:
    """Only what was sent is known not to be kept: what else is missing was changed meanwhile."""
    answer = {"metadata": META, "spec": {"a": 1}}
    assert dropped_values({"spec": {"a": 2}}, {"spec": {"b": 2, "a": 1}}, answer) == {}


def test_no_target_port_is_written_as_zero() -> None:
    """Leaders of Antrea up to 2.4 store targetPort 0 where a port has none: that is no difference."""
    body = {"spec": {"service": {"serviceSpec": {"ports": [{"name": "http", "port": 80}]}}}}
    there: dict[str, Any] = {**copy.deepcopy(body), "metadata": META}
    there["spec"]["service"]["serviceSpec"]["ports"][0]["targetPort"] = 0
    assert plan(Wanted(ref=REF, body=body), there) is None
