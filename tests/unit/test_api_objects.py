"""Objects of the API as structs: what is decoded, which wrong types are reported, and that other fields stay."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from mcagent.model.api.base import as_json
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import TYPES, read_as, read_object
from mcagent.model.parsing.field import SHOWN
from tests.antrea_objects import VERSIONS, written_by

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
    """They take the field at the top with them, and no time."""
    decoded = export(endpoints={"subsets": list(range(100_000))}, name="web")
    assert decoded.spec == ResourceExport().spec
    assert decoded.name == META["name"]


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
