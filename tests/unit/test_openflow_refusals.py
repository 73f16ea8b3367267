"""Which step of a bundle is found in what ovs-ofctl prints, whatever transaction numbers its version uses."""

from __future__ import annotations

import pytest

from mcagent.dataplane.openflow.apply import refused_step
from mcagent.model.dataplane.resources import FlowEntry, GroupEntry
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
