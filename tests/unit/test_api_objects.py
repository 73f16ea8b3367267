"""Objects of the API as structs: what is decoded, which wrong types are reported, and that other fields stay."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, get_args, get_origin
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.snapshot import ATTRIBUTE
from mcagent.model.api.base import ApiObject, ApiPart, as_json
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing import decode
from mcagent.model.parsing.decode import TYPES, read_as, read_object
from mcagent.model.parsing.field import SHOWN
from mcagent.model.parsing.parse import parse_object
from tests.worlds.antrea_objects import VERSIONS, written_by
from tests.worlds.nasty import VALUES, received

META = {"name": "east-shop-web-service", "namespace": "mcs"}


def export(**spec: Any) -> ResourceExport:
    """Return a ResourceExport with these fields."""
    return read_as(ResourceExport, {"metadata": META, "spec": {"clusterID": "east", "kind": "Service", **spec}})


@pytest.mark.parametrize("version", VERSIONS)
def test_what_controllers_of_antrea_wrote_has_no_fault(version: str) -> None:
    """Objects that were recorded decode, with null and fields that are not known."""
    for raw in written_by(version).values():
        decoded = read_object(Kind(raw["kind"]), raw)
        assert decoded.fault is None
        assert decoded.name == raw["metadata"]["name"]


def test_null_and_absent_are_the_same() -> None:
    """Go writes null for what it leaves out elsewhere; unknown fields are passed over."""
    assert export(service=None, name=None, unknown={"a": [1]}) == export()
    assert as_json(export(name="")) == {"metadata": META, "spec": {"clusterID": "east", "kind": "Service"}}


PORTS = "spec.service.serviceSpec.ports"


def ports(*entries: dict[str, Any]) -> dict[str, Any]:
    """Return the field of a Service with these ports."""
    return {"service": {"serviceSpec": {"ports": list(entries)}}}


@pytest.mark.parametrize(
    ("spec", "path", "reason"),
    [
        ({"name": 7}, "spec.name", "must be a string, is a number"),
        ({"service": []}, "spec.service", "must be a mapping, is a list"),
        (ports({"port": 80}, {"port": "x"}), f"{PORTS}[1].port", "must be a port number, is a string"),
        (ports({}), f"{PORTS}[0].port", "is missing"),
        (ports({"port": 65536}), f"{PORTS}[0].port", "not a port: must be from 1 to 65535"),
        (ports({"port": 1, "protocol": "udp"}), f"{PORTS}[0].protocol", 'must be TCP, UDP or SCTP, is "udp"'),
        (
            ports({"port": 1}, {"port": 2, "protocol": "x' - at `$.metadata`"}),
            f"{PORTS}[1].protocol",
            'must be TCP, UDP or SCTP, is "x\' - at `$.metadata`"',
        ),
        (
            ports({"port": 1, "protocol": "x" * 999}),
            f"{PORTS}[0].protocol",
            f'must be TCP, UDP or SCTP, is "{"x" * SHOWN}..."',
        ),
        ({"endpoints": {"subsets": [7, 8, 9]}}, "spec.endpoints.subsets[0]", "must be a mapping, is a number"),
        ({"name": True}, "spec.name", "must be a string, is a boolean"),
    ],
)
def test_a_wrong_type_is_left_out_and_named(spec: dict[str, Any], path: str, reason: str) -> None:
    """The object, the field and what would be right are named; the other fields are there."""
    decoded = export(**spec)
    assert decoded.spec.cluster_id == "east"
    with pytest.raises(InputError) as info:
        decoded.check("spec")
    assert (info.value.subject, info.value.path) == ("ResourceExport mcs/east-shop-web-service", path)
    assert info.value.reason == reason
    decoded.check("status")
    decoded.check("spec.clusterID")


def test_thousands_of_wrong_values_end() -> None:
    """The list is left out and named, and takes no time."""
    decoded = export(endpoints={"subsets": list(range(100_000))}, name="web")
    assert decoded.spec == export(endpoints={}, name="web").spec
    with pytest.raises(InputError, match="must be a mapping"):
        decoded.check("spec.endpoints", but=".addresses[")


# --- any JSON -----------------------------------------------------------------------------------------------

ANY = st.recursive(
    st.sampled_from(VALUES) | st.integers() | st.floats(-1e300, 1e300) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
LEAVES = {str: st.text(max_size=4), int: st.integers(0, 70_000), bool: st.booleans()}


@cache
def json_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Return JSON that is nearly what a type requires: any part may be null or any other JSON."""
    (kind,) = {kind for kind in decode._types(annotation) if kind is not str} or {str}
    origin, of = get_origin(kind), get_args(kind)
    right: st.SearchStrategy[Any]
    if origin is Mapping:
        right = st.dictionaries(st.text(max_size=4), json_of(of[1]), max_size=20)
    elif origin is tuple:
        right = st.lists(json_of(of[0]), max_size=20)
    elif isinstance(kind, type) and issubclass(kind, ApiPart):
        fields = {field.encode_name: json_of(field.type) for field in decode._fields(kind)}
        right = st.fixed_dictionaries({}, optional=fields)
    elif isinstance(kind, type) and issubclass(kind, StrEnum):
        right = st.sampled_from([*kind, "x"])
    else:
        right = LEAVES.get(of[0] if origin is Annotated else kind, ANY)
    return st.sampled_from([right] * 6 + [ANY, st.none()]).flatmap(lambda strategy: strategy)


def without_nulls(value: Any) -> Any:
    """Return JSON without what is null in mappings."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def silent(value: Any, kind: Any) -> Any:
    """Convert as msgspec does, with an error that does not say what is wrong."""
    try:
        return convert(value, kind)
    except msgspec.ValidationError:
        raise msgspec.ValidationError from None


convert = msgspec.convert


@given(kind=st.sampled_from(sorted(TYPES)), data=st.data())
def test_no_json_stops_a_reader(kind: Kind, data: st.DataObject) -> None:
    """Each is a struct without what is wrong, which has a fault, whatever msgspec's errors say."""
    fields = {field.encode_name: json_of(field.type) for field in decode._fields(TYPES[kind])}
    raw = received(data.draw(st.fixed_dictionaries({}, optional={**fields, "fault": ANY, "unknown": ANY})))
    if isinstance(raw.get("metadata", {}), dict) and data.draw(st.booleans()):
        raw["metadata"] = {"namespace": "shop", **raw.get("metadata", {}), "name": "web"}
    obj = read_object(kind, raw)
    again = read_object(kind, as_json(obj))
    assert again.fault is None
    assert as_json(again) == as_json(obj)
    try:
        expected = convert(without_nulls({**raw, "fault": None}), TYPES[kind])
    except msgspec.ValidationError:
        assert obj.fault is not None
    else:
        assert obj.fault is None
        assert without_nulls(as_json(obj)) == without_nulls(as_json(expected))
    with patch.object(msgspec, "convert", silent):
        silently = read_object(kind, raw)
    assert as_json(silently) == as_json(obj)
    assert [str(error) for error in errors_of(silently)] == [str(error) for error in errors_of(obj)]
    if kind in ATTRIBUTE:
        with suppress(InputError):
            parse_object(obj)


def errors_of(obj: ApiObject) -> Sequence[InputError]:
    """Return the errors in the fault of an object."""
    return obj.fault.errors if obj.fault is not None else ()


def test_threads_may_decode_a_kind_for_the_first_time_together() -> None:
    """A process whose informers start at once lives."""
    program = (
        "import sys, threading\n"
        "sys.setswitchinterval(1e-6)\n"
        "from mcagent.model.parsing.decode import TYPES, read_object\n"
        "start = threading.Barrier(8)\n"
        "def run():\n"
        "    start.wait()\n"
        "    for kind in TYPES:\n"
        "        read_object(kind, {'metadata': {'name': 'a'}, 'spec': {}})\n"
        "threads = [threading.Thread(target=run) for _ in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    assert TYPES
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
