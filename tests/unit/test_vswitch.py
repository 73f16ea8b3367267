"""What `mcagent openvswitch` saves of a bridge; the daemons are tests/contract/test_vswitch.py's."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcagent.vswitch import tools as programs
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


@pytest.mark.parametrize("readable", [True, False])
def test_only_a_database_that_cannot_be_read_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, readable: bool
) -> None:
    """On a full disk it cannot be converted, and holds the bridges of all programs all the same."""
    tools = programs.Tools(run=tmp_path, data=tmp_path)
    tools.database.write_text("bridges")

    def call(_: programs.Tools, program: str, command: str, *arguments: str) -> str:
        assert program == "ovsdb-tool"
        if command == "convert" or (command == "query" and not readable):
            raise programs.ExitCodeError("ovsdb-tool convert: I/O error: write failed (No space left on device)")
        if command == "create":
            Path(arguments[0]).write_text("")
        return "yes\n"

    monkeypatch.setattr(programs.Tools, "_call", call)
    tools.make_database()
    assert tools.database.read_text() == ("bridges" if readable else "")
    assert ("is used as it is" in caplog.text, "was replaced by an empty one" in caplog.text) == (
        readable,
        not readable,
    )
    assert "No space left on device" in caplog.text
