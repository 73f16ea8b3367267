"""Flows and groups of random worlds, loaded into a real Open vSwitch, are dumped just as they were made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.nodes.ovs import OvsInstance
from flows.parse import parse_flow, parse_group
from flows.text import parse_flow_line, parse_group_line
from tests.contract.real_switch import RealSwitch
from tests.properties import COSTLY
from tests.worlds.topologies import World, worlds

pytestmark = pytest.mark.contract


@COSTLY
@given(world=worlds(min_clusters=2), data=st.data())
def test_dump_equals_what_was_loaded(ovs: OvsInstance, world: World, data: st.DataObject) -> None:
    """Text and parsed values of every flow and group come back equal, so an unchanged flow never looks changed."""
    node = data.draw(st.sampled_from(list(world.nodes.values())))
    flows, groups = world.entries(node)
    switch = RealSwitch.of(ovs, world, node)
    try:
        dumped_flows, dumped_groups = switch.dump_flows(), switch.dump_groups()
    finally:
        switch.close()
    made = sorted((f.table, f.priority, f.match_text, f.cookie, f.actions_text) for f in flows)
    assert sorted(parse_flow_line(line) for line in dumped_flows) == made
    assert sorted(parse_group_line(line) for line in dumped_groups) == sorted(
        (g.group_id, g.body_text) for g in groups
    )
    assert {parse_flow(line) for line in dumped_flows} == set(flows)
    assert {parse_group(line) for line in dumped_groups} == set(groups)
