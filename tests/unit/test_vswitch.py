"""What `mcagent openvswitch` saves of a bridge; the daemons are tests/contract/test_vswitch.py's."""

from __future__ import annotations

from mcagent.vswitch.saved_flows import meter_lines

DUMPED = """\
OFPST_METER_CONFIG reply (OF1.5) (xid=0x2):
meter=4 pktps burst stats bands=
type=drop rate=100 burst_size=50

meter=5 kbps bands=
type=drop rate=8000
type=dscp_remark rate=1000 prec_level=1
"""


def test_meters_are_one_line_each() -> None:
    """Every band follows its meter, as add-meter reads it; without meters there is nothing."""
    assert [*meter_lines(DUMPED)] == [
        "meter=4 pktps burst bands=type=drop rate=100 burst_size=50",
        "meter=5 kbps bands=type=drop rate=8000 type=dscp_remark rate=1000 prec_level=1",
    ]
    assert [*meter_lines("OFPST_METER_CONFIG reply (OF1.5) (xid=0x2):\n")] == []
