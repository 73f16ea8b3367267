"""A real Open vSwitch takes the pipeline, and prints it exactly as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import pytest

from devtools.nodes.ovs import OvsInstance
from flows.parse import parse_flow, parse_group
from flows.pipeline import PIPELINE
from flows.text import is_group_line, parse_flow_line, parse_group_line
from tests.worlds import small_topology as small

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

BRIDGE = "br-mc"


@pytest.fixture(scope="module")
def bridge(ovs: OvsInstance) -> str:
    """Give a bridge of the userspace datapath; returns its management socket."""
    options = ("datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow15")
    ovs.vsctl("add-br", BRIDGE, "--", "set", "bridge", BRIDGE, *options)
    return ovs.mgmt(BRIDGE)


@pytest.fixture
def clean(ovs: OvsInstance, bridge: str) -> Iterator[str]:
    """Give the bridge, empty before and after."""
    yield bridge
    ovs.ofctl("del-flows", bridge)
    ovs.ofctl("del-groups", bridge)


@pytest.mark.parametrize("snat", [False, True])
@pytest.mark.parametrize("siblings", [(), (3,), (3, 4)])
@pytest.mark.parametrize("gateway", [True, False])
def test_what_is_written_is_what_is_printed(
    ovs: OvsInstance, clean: str, gateway: bool, siblings: tuple[int, ...], snat: bool
) -> None:
    """As text and as values; an unchanged flow or group compares equal after a restart of the agent."""
    parts = small.parts(gateway=gateway, siblings=siblings, snat=snat)
    flows, groups = small.flows_of(parts), small.groups_of(parts)
    lines = [
        f"group add group_id={group.group_id},{group.body_text}"
        for group in sorted(groups, key=attrgetter("group_id"))
    ]
    for flow in flows:
        match = f"{flow.match_text}," if flow.match_text else ""
        where = f"table={flow.table},priority={flow.priority},cookie={flow.cookie:#x}"
        lines.append(f"flow add {where},{match}actions={flow.actions_text}")
    ovs.ofctl("bundle", clean, "-", stdin="\n".join(lines) + "\n")

    for options in (("--no-names", "--no-stats"), ("--no-names",)):
        dump = [line for line in ovs.ofctl(*options, "dump-flows", clean).splitlines() if "actions=" in line]
        assert {parse_flow(line) for line in dump} == set(flows)
        expected = {(f.table, f.priority, f.match_text, f.cookie, f.actions_text) for f in flows}
        assert {parse_flow_line(line) for line in dump} == expected
    dump = [line for line in ovs.ofctl("--no-names", "dump-groups", clean).splitlines() if is_group_line(line)]
    assert {parse_group(line) for line in dump} == set(groups)
    assert {parse_group_line(line) for line in dump} == {(group.group_id, group.body_text) for group in groups}


def test_the_bridge_holds_nothing_that_is_not_ours(ovs: OvsInstance, clean: str) -> None:
    """The cookie mask of the declaration finds all of the pipeline."""
    flows = small.flows_of(small.parts(gateway=False))
    lines = [
        f"table={f.table},priority={f.priority},cookie={f.cookie:#x}"
        f"{',' if f.match_text else ''}{f.match_text},actions={f.actions_text}"
        for f in flows
        if "group:" not in f.actions_text
    ]
    lines.append("table=3,priority=1,cookie=0x1234,actions=drop")
    ovs.ofctl("add-flows", clean, "-", stdin="\n".join(lines) + "\n")
    value, mask = PIPELINE.cookies.mask
    own_lines = ovs.ofctl("--no-stats", "dump-flows", clean, f"cookie={value:#x}/{mask:#x}").splitlines()
    assert len([line for line in own_lines if "actions=" in line]) == len(lines) - 1
