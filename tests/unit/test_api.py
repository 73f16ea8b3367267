"""The API of agents and commands: JSON of the version before is read, and every member of it is still sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import ValidationError

from mcagent.api import codec
from mcagent.api.benchmark import BenchmarkReport
from mcagent.api.codec import VERSION, CamelRecord, Record, from_json, to_json
from mcagent.api.doctor import DoctorReport, NodeReport
from mcagent.api.overview import Overview
from mcagent.api.plan import DesiredState, ForecastReport, PlanReport
from mcagent.api.policies import PolicyExplanation, PolicyList
from mcagent.api.status import Status
from mcagent.api.topology import TopologyPage
from mcagent.api.trace import NodeTrace, SeenProbes, SentProbes
from mcagent.api.traffic import ServicesReport, TrafficReport
from mcagent.api.versions import VersionReport
from mcagent.model.errors import McagentError

RECORDED = Path(__file__).parents[1] / "data" / "api-0.1"  # pages from before they had apiVersion
KINDS: dict[str, type[Record | CamelRecord]] = {
    "status-gateway": Status,
    "status-worker": Status,
    "doctor": NodeReport,
    "command-doctor": DoctorReport,
    "trace": NodeTrace,
    "trace-live": SentProbes,
    "trace-seen": SeenProbes,
    "plan": PlanReport,
    "plan-offline": PlanReport,
    "plan-desired": DesiredState,
    "plan-what-if": ForecastReport,
    "topology": TopologyPage,
    "benchmark": BenchmarkReport,
    "benchmark-failed": BenchmarkReport,
    "top-cluster": TrafficReport,
    "top-service": ServicesReport,
    "top-tunnel": TrafficReport,
    "policy-list": PolicyList,
    "policy-explain": PolicyExplanation,
}


def recorded(name: str) -> dict[str, Any]:
    """Return the members of a recorded page."""
    members: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return members


def lost(before: object, after: object, path: str = "$") -> list[str]:
    """Return the paths of members of `before` that `after` has not, or with another value."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        missing = [f"{path}.{name}" for name in before if name not in after]
        shared = [name for name in before if name in after]
        return missing + [below for name in shared for below in lost(before[name], after[name], f"{path}.{name}")]
    if isinstance(before, list) and isinstance(after, list | tuple) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [below for number, pair in pairs for below in lost(*pair, f"{path}[{number}]")]
    return [] if before == after else [path]


@pytest.mark.parametrize("name", KINDS)
def test_a_recorded_page_is_read_and_sent_again_as_it_was(name: str) -> None:
    """No member gets lost, or another name, type or value; there may be more."""
    members = recorded(name)
    page = from_json(KINDS[name], members, "an old agent")
    assert lost(members, to_json(page)) == []
    assert lost(members, json.loads(json.dumps(to_json(page)))) == []


@pytest.mark.parametrize("kind", [*dict.fromkeys(KINDS.values()), VersionReport, Overview])
def test_a_member_that_is_not_sent_has_its_default_and_an_unknown_one_is_ignored(kind: type[Record]) -> None:
    """So older agents are read, and newer ones of this version."""
    assert from_json(kind, {"aLaterMember": {"x": 1}}, "an agent") == kind()


def _annotation() -> type[int]:
    """Stand for an annotation, which msgspec evaluates when it inspects the struct."""
    _alone.append(codec._inspecting.locked())
    return int


_alone: list[bool] = []


@pytest.mark.parametrize("decode", [partial(from_json, source=""), codec.converted])
def test_one_thread_alone_inspects_a_struct(decode: Callable[[type[Record], Any], Record]) -> None:
    """Two that do it at the same time crash the process; also if the first page cannot be decoded."""

    class Page(Record, frozen=True):
        """A struct that nothing has decoded."""

        value: _annotation() = 0  # type: ignore[valid-type]

    _alone.clear()
    with suppress(McagentError, ValidationError):
        decode(Page, {"value": "x"})
    assert decode(Page, {"value": 1}) == Page(value=1)
    assert set(_alone) == {True}
    assert not codec._inspecting.locked()


def test_what_has_another_type_is_named_with_who_sent_it() -> None:
    """A person finds out which agent it is, and where in its page."""
    with pytest.raises(McagentError, match=r"^the agent of n1: .*`str`, got `int` - at `\$.tunnels\[0\].name`"):
        from_json(Status, {"tunnels": [{"name": 7}]}, "the agent of n1")


def test_a_later_version_is_refused_with_both_numbers() -> None:
    """Its members may mean something else."""
    assert to_json(Status())["apiVersion"] == VERSION
    with pytest.raises(McagentError, match="version v2, this program reads v1"):
        from_json(Status, {"apiVersion": "v2"}, "the agent of n1")


def test_a_recorded_status_says_what_commands_show() -> None:
    """Helpers find gateways and clusters in it."""
    status = from_json(Status, recorded("status-gateway"), "an old agent")
    assert status.cluster_id == "east"
    assert {gateway.address for name, gateway in status.gateways_by_tunnel.items() if name.startswith("mcr-")} == {
        "192.168.2.11",
        "192.168.2.12",
    }
    assert status.summary.antrea_clusters == []
    assert status.encryption is not None
    assert [peer.state for peer in status.encryption.peers] == ["established", "never"]


def test_the_hops_of_a_recorded_trace_are_read_and_sent_again_as_they_were() -> None:
    """`mcagent trace -o json` has the page /trace of each hop as `walk`."""
    command = recorded("command-trace")
    walks = [hop["walk"] for hop in (*command["hops"], *command["answer"])]
    assert walks
    assert [lost(walk, to_json(from_json(NodeTrace, walk, "an old command"))) for walk in walks] == [[]] * len(
        walks
    )
