"""Bundles: their order, their lines, and which step is refused by what ovs-ofctl prints, in every version."""

from __future__ import annotations

import pytest

from mcagent.dataplane.openflow.apply import (
    bundle_line,
    failure,
    in_bundle_order,
    name_of,
    refused_step,
    without_users,
)
from mcagent.model.dataplane.resources import FlowEntry, GroupEntry, MeterEntry
from mcagent.model.errors import BackendError
from mcagent.model.plan import Step

COOKIE = 0x6D63 << 48
ENTRIES: list[FlowEntry | GroupEntry] = [
    *(
        FlowEntry(table=40, priority=100, match=f"ip,nw_dst=10.0.0.{n}", cookie=COOKIE | n, actions="group:9")
        for n in range(1, 4)
    ),
    FlowEntry(table=40, priority=100, match="ip,nw_dst=10.0.0.4", cookie=COOKIE | 3, actions="group:9"),
    GroupEntry(group_id=500, body="type=select"),
]
STEPS = [Step(new=entry, owner="base") for entry in ENTRIES]
QUOTED = """\
Error OFPBAC_BAD_OUT_GROUP for: OFPT_FLOW_MOD (OF1.5) (xid={xid:#x}): \
ADD table:40 priority=100,ip,nw_dst=10.0.0.2 cookie:0x6d63000000000002 actions=group:9
Error OFPBFC_MSG_FAILED for: OFPT_BUNDLE_CONTROL (OF1.5) (xid=0x10):
 bundle_id=0 type=COMMIT_REQUEST flags=atomic ordered
ovs-ofctl: talking to unix:/run/br-mc.mgmt (Protocol error)
"""
UNREADABLE_FLOW = """\
Error OFPBAC_BAD_ARGUMENT for: 2026-11-23T02:33:09Z|00002|ofp_actions|WARN|bad action at offset 0:
00000000  ff ff 00 30 00 00 23 20-00 23 00 00 00 00 00 00
00000010  00 00 ff 00 00 00 00 00-ff ff 00 18 00 00 23 20
OFPT_FLOW_MOD (OF1.5) (xid={xid:#x}): ***decode error: OFPBAC_BAD_ARGUMENT***
00000000  06 0e 00 80 00 00 00 0a-6d 63 00 00 00 00 00 03 |........mc......|
00000010  00 00 00 00 00 00 00 00-28 00 00 00 00 00 00 64 |........(......d|
ovs-ofctl: talking to unix:/run/br-mc.mgmt (Protocol error)
"""
UNREADABLE_GROUP = """\
Error OFPBPC_BAD_VALUE for: 2026-11-23T02:33:09Z|00001|ofp_group|WARN|ntr selection method is not supported
OFPT_GROUP_MOD (OF1.5) (xid={xid:#x}): ***decode error: OFPBPC_BAD_VALUE***
00000000  06 0f 00 60 00 00 00 0a-80 00 01 00 00 00 01 f4 |...`............|
00000010  00 20 00 00 ff ff ff ff-00 20 00 10 00 00 00 00 |. ....... ......|
ovs-ofctl: talking to unix:/run/br-mc.mgmt (Protocol error)
"""


@pytest.mark.parametrize(
    ("printed", "xid", "index"),
    [
        (QUOTED, 7, 1),
        (QUOTED, 0x44, 1),  # a version that numbers otherwise: what is quoted counts
        (QUOTED, 6, 1),  # or whose number is that of another step
        (UNREADABLE_FLOW, 8, 2),
        (UNREADABLE_FLOW, 9, 3),  # of two with the same cookie, the one of that number
        (UNREADABLE_FLOW, 0x44, 2),
        (UNREADABLE_FLOW, 6, 2),
        (UNREADABLE_GROUP, 10, 4),
        (UNREADABLE_GROUP, 6, 4),
    ],
)
def test_the_refused_step_is_the_one_that_is_quoted(printed: str, xid: int, index: int) -> None:
    """In words or as bytes; transaction numbers only decide between steps that look alike."""
    refused = refused_step(printed.format(xid=xid), STEPS)
    assert refused is not None
    assert refused[0] == index
    assert refused[1].startswith("OFPB")


def test_a_syntax_error_names_its_line_and_other_trouble_no_step() -> None:
    """Lines count from 1; a bridge that cannot be reached has refused nothing."""
    assert refused_step("ovs-ofctl: -:5: unknown action nonsense\n", STEPS) == (4, "unknown action nonsense")
    assert (
        refused_step("ovs-ofctl: /run/br-mc.mgmt: failed to connect to socket (Connection refused)\n", STEPS)
        is None
    )
    unknown = QUOTED.format(xid=7).replace("10.0.0.2", "10.9.9.9")
    refused = refused_step(unknown, STEPS)
    assert refused is not None
    assert refused[0] is None


def test_a_message_is_quoted_without_what_follows_it() -> None:
    """In one line, up to 300 characters; the errors after it are about the whole bundle."""
    refused = refused_step(QUOTED.format(xid=7), STEPS)
    assert refused is not None
    assert refused[1] == (
        "OFPBAC_BAD_OUT_GROUP: OFPT_FLOW_MOD (OF1.5) (xid=0x7): ADD table:40 priority=100,ip,nw_dst=10.0.0.2"
        " cookie:0x6d63000000000002 actions=group:9"
    )
    long = QUOTED.format(xid=7).replace("actions=group:9", "actions=" + "output:1," * 100)
    refused = refused_step(long, STEPS)
    assert refused is not None
    assert len(refused[1]) == len("OFPBAC_BAD_OUT_GROUP: ") + 300
    assert refused_step("", STEPS) is None


def quoted(kind: str, text: str) -> str:
    """Return what ovs-ofctl prints of one refused message."""
    return f"Error OFPBAC_BAD_OUT_GROUP for: {kind} (OF1.5) (xid=0x99): {text}\novs-ofctl: talking to it\n"


@pytest.mark.parametrize(
    ("kind", "text", "index"),
    [
        ("OFPT_FLOW_MOD", "ADD priority=5,ip cookie:0x5 actions=drop", 0),  # table 0 is left out
        ("OFPT_FLOW_MOD", "ADD table:7 priority=5 cookie:0x6 actions=drop", 1),
        ("OFPT_FLOW_MOD", "ADD table:7 priority=5 cookie:0x6", 1),
        ("OFPT_FLOW_MOD", "ADD table:77 priority=5 cookie:0x6 actions=drop", None),
        ("OFPT_FLOW_MOD", "ADD table:7 priority=5 cookie:0x66 actions=drop", None),
        ("OFPT_FLOW_MOD", "ADD group_id=3,type=all", None),
        ("OFPT_GROUP_MOD", "ADD group_id=3,type=all", 2),
        ("OFPT_GROUP_MOD", "DEL group_id=3", 2),
        ("OFPT_GROUP_MOD", "ADD group_id=33,type=all", None),
        ("OFPT_PORT_MOD", "ADD group_id=3,type=all", None),
    ],
)
def test_a_quote_is_compared_whole(kind: str, text: str, index: int | None) -> None:
    """Numbers that begin alike are others; the kind of the message counts."""
    steps = [
        Step(new=FlowEntry(table=0, priority=5, match="ip", cookie=5, actions="drop")),
        Step(new=FlowEntry(table=7, priority=5, match="", cookie=6, actions="drop")),
        Step(new=GroupEntry(group_id=3, body="type=all")),
    ]
    refused = refused_step(quoted(kind, text), steps)
    assert refused is not None
    assert refused[0] == index


def flow(number: int, actions: str = "drop") -> FlowEntry:
    """Return a flow."""
    return FlowEntry(table=1, priority=number, match="ip", cookie=COOKIE | number, actions=actions)


def group(number: int, body: str = "type=all") -> GroupEntry:
    """Return a group."""
    return GroupEntry(group_id=number, body=body)


def test_groups_are_added_before_and_deleted_after_what_uses_them() -> None:
    """A group that another group uses comes before that one; flows keep their order."""
    steps = [
        Step(new=flow(1, "group:1")),
        Step(new=group(1, "type=all,bucket=group:2,bucket=watch_group:3")),
        Step(old=group(4)),
        Step(old=flow(2)),
        Step(new=group(2, "type=all,bucket=group:3,bucket=group:9")),
        Step(new=group(3)),
        Step(old=group(5), new=group(5, "type=select")),
    ]
    ordered = in_bundle_order(list(enumerate(steps)))
    assert sorted(place for place, _ in ordered) == list(range(7))
    assert all(step is steps[place] for place, step in ordered)
    places = [place for place, _ in ordered]
    assert places.index(5) < places.index(4) < places.index(1) < places.index(0)
    assert places.index(6) < places.index(0)
    assert places[-3:] == [0, 3, 2]


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (Step(new=group(7, "type=all,bucket=drop")), "group add_or_mod group_id=7,type=all,bucket=drop"),
        (Step(old=group(7), new=group(7, "type=select")), "group add_or_mod group_id=7,type=select"),
        (Step(old=group(7)), "group delete group_id=7"),
        (Step(new=flow(5)), "flow add cookie=0x6d63000000000005,table=1,priority=5,ip actions=drop"),
        (
            Step(new=FlowEntry(table=1, priority=5, match="", cookie=5, actions="resubmit(,2)")),
            "flow add cookie=0x5,table=1,priority=5 actions=resubmit(,2)",
        ),
        (
            Step(old=flow(5)),
            "flow delete_strict cookie=0x6d63000000000000/0xffff000000000000,table=1,priority=5,ip",
        ),
    ],
)
def test_a_step_is_a_line_of_a_bundle(step: Step, line: str) -> None:
    """A changed group is modified, which keeps its flows; only a flow of the agent is deleted."""
    assert bundle_line(step) == line


def test_what_uses_a_refused_group_is_left_out() -> None:
    """Also by way of another group; the others remain in their order."""
    steps = list(
        enumerate(
            [
                Step(new=group(1, "type=all,bucket=group:8")),
                Step(new=flow(1, "group:1")),
                Step(new=flow(2, "group:2")),
                Step(new=flow(3, "meter:5,group:2")),
                Step(old=flow(4, "group:8")),
                Step(new=flow(5, "group:88")),
            ]
        )
    )
    failed: dict[int, BackendError] = {}
    remaining = without_users(steps, {"group:8", "meter:5"}, failed)
    assert [place for place, _ in remaining] == [2, 4, 5]
    assert {place: str(error) for place, error in failed.items()} == {
        0: "openflow: add group 0x1: group:8, which it needs, was refused",
        1: "openflow: add flow table=1,priority=1,ip: group:1, which it needs, was refused",
        3: "openflow: add flow table=1,priority=3,ip: meter:5, which it needs, was refused",
    }
    assert [error.retryable for error in failed.values()] == [True, True, False]


def test_nothing_is_left_out_without_a_refusal_and_a_given_cause_is_that_of_all() -> None:
    """Steps on groups and flows that need nothing stay."""
    steps = list(enumerate([Step(new=flow(1, "group:1")), Step(new=flow(2))]))
    failed: dict[int, BackendError] = {}
    assert without_users(steps, set(), failed) == steps
    assert failed == {}
    cause = BackendError("openflow", "list", "groups", "no answer")
    assert without_users(steps, {"group:1", "group:2"}, failed, cause) == steps[1:]
    assert failed == {0: cause}


def test_names_and_errors_of_steps() -> None:
    """Flows refer to groups and meters by these names; errors have the object and the operation."""
    meter = MeterEntry(meter_id=5, rate=1, burst=1)
    assert [name_of(resource) for resource in (group(500), meter, flow(1), None)] == [
        "group:500",
        "meter:5",
        "",
        "",
    ]
    errors = [
        failure(Step(old=group(500)), "busy"),
        failure(Step(old=meter, new=meter), "busy", retryable=False),
        failure(Step(new=flow(1)), "busy"),
    ]
    assert [(str(error), error.retryable) for error in errors] == [
        ("openflow: delete group 0x1f4: busy", True),
        ("openflow: replace meter 5: busy", False),
        ("openflow: add flow table=1,priority=1,ip: busy", True),
    ]
