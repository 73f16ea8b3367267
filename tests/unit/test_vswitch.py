"""What `mcagent openvswitch` saves of a bridge; the daemons are tests/contract/test_vswitch.py's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

import pytest

from mcagent.vswitch import tools as programs
from mcagent.vswitch.daemons import Daemons
from mcagent.vswitch.saved_flows import meter_lines
from mcagent.vswitch.tools import Tools

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


class Running:
    """A daemon that has not ended."""

    def poll(self) -> None:
        """Return no exit code."""

    def wait(self, _timeout: float = 0.0) -> int:
        """Return the exit code at once."""
        return 0

    def terminate(self) -> None:
        """End."""


class OneBridge(Tools):
    """The tools of an Open vSwitch with the bridge of an agent, without flows; `calls` has those that write."""

    calls: ClassVar[list[str]]

    def answers(self) -> bool:
        """Return that ovsdb-server listens."""
        return True

    def make_database(self) -> None:
        """Do nothing: there is one."""

    def bridges(self) -> list[str]:
        """Return the bridge."""
        return ["br-mc"]

    def owned_by_agents(self) -> set[str]:
        """Return the bridge."""
        return {"br-mc"}

    def vsctl(self, *arguments: str) -> str:
        """Record a call."""
        self.calls.append(" ".join(arguments))
        return ""

    def appctl(self, *arguments: str) -> str:
        """Answer for a vswitchd that has created the bridge."""
        self.calls.append(" ".join(arguments))
        return "br-mc"

    def ofctl(self, command: str, _bridge: str, *_arguments: str) -> str:
        """Answer for a bridge without flows."""
        self.calls.append(command)
        return "flow_count=0" if command == "dump-aggregate" else ""


@pytest.mark.parametrize("looks", [0, 1], ids=["before it answers", "before an agent has filled the bridge"])
def test_an_end_during_the_start_leaves_datapath_and_saved_flows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Else vswitchd would delete the datapath's flows, and the next one would restore an empty bridge."""
    tools = OneBridge(run=tmp_path, data=tmp_path)
    calls: list[str] = []
    monkeypatch.setattr(OneBridge, "calls", calls, raising=False)
    saved = tmp_path / "mcagent-saved" / "br-mc.flows"
    if not looks:
        saved.parent.mkdir()
        saved.write_text("table=0,actions=drop\n")
    checks = iter([*[False] * looks, *[True] * 100])
    daemons = Daemons(tools, lambda: next(checks))

    def spawn(name: str, *_arguments: str) -> None:
        daemons._running[name] = Running()  # type: ignore[assignment]
        daemons._began[name] = time.monotonic()

    monkeypatch.setattr(daemons, "_spawn", spawn)
    daemons.start()
    daemons.stop()
    assert any("flow-restore-wait=true" in call for call in calls)
    assert not any(call.startswith("remove ") for call in calls)
    assert "exit" in calls
    assert "dump-flows" not in calls
    assert saved.exists() is not bool(looks)


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
