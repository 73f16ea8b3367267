"""`mcagent openvswitch` with real daemons, each in a namespace of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from mcagent.vswitch.tools import SwitchError, Tools

pytestmark = [pytest.mark.contract, pytest.mark.datapath]

FLOWS = "table=0,priority=7,ip,nw_dst=10.9.0.0/16,actions=ct(zone=28003,table=5)"
GROUP = "group_id=3,type=select,selection_method=dp_hash,bucket=bucket_id=1,weight=10,actions=drop"
METER = "meter=4,pktps,burst,band=type=drop,rate=100,burst_size=50"
BRIDGE = "br-mc"


class Container:
    """One `mcagent openvswitch`, as the DaemonSet runs it."""

    def __init__(self, namespace: str, base: Path, name: str, policy: str) -> None:
        self.log = base / f"{name}.log"
        command = [sys.executable, "-m", "mcagent.cli.main", "openvswitch", "--policy", policy]
        places = ["--run-directory", str(base), "--data-directory", str(base / "data")]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                netns.command(namespace, [*command, *places]), stdout=log, stderr=subprocess.STDOUT
            )

    def says(self, text: str, timeout: float = 30.0) -> None:
        """Wait until the log has it."""
        wait_until(lambda: text in self.log.read_text(), f"{text!r} in {self.log}", timeout=timeout, interval=0.05)

    def end(self) -> int:
        """Tell it to end; return its exit code."""
        self.process.terminate()
        return self.process.wait(30)


Start = Callable[..., Container]


@pytest.fixture
def base() -> Iterator[Path]:
    """Give a directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix=f"mct.{os.getpid()}.") as directory:
        yield Path(directory)


@pytest.fixture
def start(fresh_namespace: str, base: Path) -> Iterator[Start]:
    """Give a function that starts a container on the Node."""
    started: list[Container] = []

    def begin(policy: str = "auto") -> Container:
        started.append(Container(fresh_namespace, base, f"c{len(started)}", policy))
        return started[-1]

    yield begin
    for instance in reversed(started):
        if instance.process.poll() is None:
            instance.end()


@pytest.fixture
def tools(base: Path) -> Tools:
    """Give the tools of the Node's Open vSwitch."""
    return Tools(run=base, data=base / "data")


def fill(tools: Tools) -> None:
    """Do what an agent does: a bridge with its tag, a meter, a group and flows."""
    bridge = ("--", "set", "bridge", BRIDGE, "datapath_type=netdev", "fail_mode=secure")
    tools.vsctl("add-br", BRIDGE, *bridge, f"external_ids:mcagent-owner={BRIDGE}")
    wait_until((tools.run / f"{BRIDGE}.mgmt").exists, "the bridge", timeout=10.0, interval=0.05)
    program(tools)


def program(tools: Tools) -> None:
    """Write what the bridge forwards by."""
    tools.ofctl("set-frags", BRIDGE, "nx-match")
    tools.ofctl("add-meter", BRIDGE, METER)
    tools.ofctl("add-group", BRIDGE, GROUP)
    tools.ofctl("add-flow", BRIDGE, FLOWS)
    tools.ofctl("add-flow", BRIDGE, "table=5,actions=meter:4,group:3")


def content(tools: Tools) -> list[str]:
    """Return meters, groups, flows and the handling of fragments of the bridge."""
    dumps = [tools.ofctl(f"dump-{kind}", BRIDGE) for kind in ("meters", "groups")]
    dumps += [tools.ofctl("dump-flows", BRIDGE, "--no-stats"), tools.ofctl("get-frags", BRIDGE)]
    return [line.strip() for text in dumps for line in text.splitlines() if not re.match("OFP(ST|T)_", line)]


def daemon(tools: Tools, name: str) -> int:
    """Return a daemon's pid; 0 while it has written none."""
    file = tools.run / f"{name}.pid"
    return int(file.read_text() or 0) if file.exists() else 0


def test_a_new_container_takes_over_what_the_old_one_forwarded(start: Start, tools: Tools) -> None:
    """It waits while the old one runs, and then has its meters, groups, flows and port numbers."""
    old = start()
    old.says("Open vSwitch runs")
    fill(tools)
    before, ports = content(tools), tools.ofctl("dump-ports-desc", BRIDGE)
    new = start()
    new.says("waiting to take over")
    assert old.end() == 0
    new.says(f"forwards again: {BRIDGE}")
    assert content(tools) == before
    assert re.findall(r"\d+\(", tools.ofctl("dump-ports-desc", BRIDGE)) == re.findall(r"\d+\(", ports)
    assert "flow-restore-wait" not in tools.vsctl("get", "Open_vSwitch", ".", "other_config")


def test_after_a_crash_it_holds_until_the_agent_has_filled_the_bridge(start: Start, tools: Tools) -> None:
    """ovs-vswitchd comes back by itself, exchanges no packets before its flows are there, and then does."""
    instance = start()
    instance.says("Open vSwitch runs")
    fill(tools)
    pid = daemon(tools, "ovs-vswitchd")
    os.kill(pid, signal.SIGKILL)
    instance.says("ovs-vswitchd exited")
    wait_until(
        lambda: daemon(tools, "ovs-vswitchd") not in {0, pid} and BRIDGE in tools.bridges(),
        "its return",
        timeout=10.0,
    )
    assert "flow-restore-wait" in tools.vsctl("get", "Open_vSwitch", ".", "other_config")
    wait_until(lambda: _programs(tools), "the bridge", timeout=10.0, interval=0.05)
    instance.says(f"forwards again: {BRIDGE}")
    assert "flow-restore-wait" not in tools.vsctl("get", "Open_vSwitch", ".", "other_config")


def _programs(tools: Tools, *, anew: bool = False) -> bool:
    try:
        for kind in ("flows", "groups", "meters") if anew else ():
            tools.ofctl(f"del-{kind}", BRIDGE)
        program(tools)
    except SwitchError:
        return False
    return True


def test_ovsdb_comes_back_alone(start: Start, tools: Tools) -> None:
    """The end of ovsdb-server costs vswitchd nothing."""
    instance = start()
    instance.says("Open vSwitch runs")
    fill(tools)
    before, switch = content(tools), daemon(tools, "ovs-vswitchd")
    os.kill(daemon(tools, "ovsdb-server"), signal.SIGKILL)
    instance.says("ovsdb-server exited")
    wait_until(tools.answers, "ovsdb-server", timeout=10.0, interval=0.05)
    assert (daemon(tools, "ovs-vswitchd"), content(tools)) == (switch, before)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "zeros": lambda content: bytes(len(content)),
    "half": lambda content: content[: len(content) // 2],
    "cut tail": lambda content: content[:-10],
    "another byte": lambda content: content[:500] + b"\xff" + content[501:],
    "text": lambda _: b"hello\n",
    "another schema": lambda content: content.replace(b"Open_vSwitch", b"Open_vSwitcx"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database_is_replaced(start: Start, tools: Tools, damage: str) -> None:
    """Open vSwitch starts, with an empty database or what is left, and the damaged file is kept."""
    former = start()
    former.says("Open vSwitch runs")
    fill(tools)
    assert former.end() == 0
    damaged = DAMAGES[damage](tools.database.read_bytes())
    tools.database.write_bytes(damaged)
    container = start()
    container.says("Open vSwitch runs")
    if damage != "cut tail":  # ovsdb-server itself ignores an incomplete last record
        container.says("is damaged and was replaced by an empty one")
        assert tools.database.with_name("conf.db.damaged").read_bytes() == damaged
        assert tools.bridges() == []
    tools.vsctl("--if-exists", "del-br", BRIDGE)
    wait_until(lambda: not (tools.run / f"{BRIDGE}.mgmt").exists(), "no bridge", timeout=10.0, interval=0.05)
    fill(tools)
    assert container.end() == 0


def test_a_database_is_not_replaced_where_no_new_one_can_be_created(base: Path) -> None:
    """On a full disk, or without ovsdb-tool, the file stays."""
    tools = Tools(run=base, data=base / "data")
    tools.make_database()
    tools.database.write_bytes(b"")
    (base / "data/conf.db.new").mkdir()  # ovsdb-tool cannot create it
    with pytest.raises(SwitchError, match=r"conf.db is damaged .*, and cannot be replaced"):
        tools.make_database()
    assert tools.database.read_bytes() == b""


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        ("meters", b""),
        ("meters", b"\xff\x00"),
        ("groups", b"\xff\x00"),
        ("flows", b""),
        ("flows", b"table=0,priority=7,ip,act"),
        ("", b""),
    ],
)
def test_damaged_saved_flows_do_not_prevent_the_start(
    start: Start, tools: Tools, suffix: str, content: bytes
) -> None:
    """What cannot be restored is left to the agent, and the files are removed."""
    former = start()
    former.says("Open vSwitch runs")
    fill(tools)
    assert former.end() == 0
    saved = tools.run / "mcagent-saved"
    if suffix:
        (saved / f"{BRIDGE}.{suffix}").write_bytes(content)
    else:
        (saved / f"{BRIDGE}.meters").unlink()
    container = start()
    wait_until(lambda: _programs(tools, anew=True), "the agent's flows", timeout=30.0)
    container.says("Open vSwitch runs")
    assert not saved.exists()


def test_daemons_end_where_flows_cannot_be_saved(start: Start, tools: Tools) -> None:
    """Both end, so that the next container can start its own."""
    container = start()
    container.says("Open vSwitch runs")
    fill(tools)
    pids = [daemon(tools, name) for name in ("ovs-vswitchd", "ovsdb-server")]
    (tools.run / "mcagent-saved").write_text("not a directory")
    assert container.end() == 0
    container.says("cannot save flows")
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    following = start()
    wait_until(lambda: _programs(tools, anew=True), "the agent's flows", timeout=30.0)
    following.says("Open vSwitch runs")


def test_an_open_vswitch_that_is_there_is_used(
    fresh_namespace: str, start: Start, tools: Tools, base: Path
) -> None:
    """No second one is started, also not while the first is away; `always` starts ours then."""
    other_instance = OvsInstance.start(fresh_namespace, base)
    pids = other_instance.pids
    own_instance = start()
    own_instance.says("using the Node's own Open vSwitch")
    assert other_instance.pids == pids
    other_instance.stop()
    own_instance.says("does not answer: waiting for it")
    assert own_instance.end() == 0
    again = start()
    again.says("does not answer: waiting for it")
    assert not tools.answers()
    assert again.end() == 0
    ours = start("always")
    ours.says("Open vSwitch runs")


def test_always_refuses_another(fresh_namespace: str, start: Start, base: Path) -> None:
    """With policy `always` it ends, and says what to do."""
    other_instance = OvsInstance.start(fresh_namespace, base)
    try:
        refused = start("always")
        assert refused.process.wait(30) == 1
        assert "set openvswitch.deploy=auto" in refused.log.read_text()
    finally:
        other_instance.stop()


def test_one_with_its_sockets_elsewhere_is_not_disturbed(
    fresh_namespace: str, start: Start, tools: Tools, base: Path
) -> None:
    """A device of Open vSwitch without its socket where we look: it ends, and names the value to set."""
    other_instance = OvsInstance.start(fresh_namespace, base / "antrea")
    try:
        other_instance.vsctl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev")
        refused = start()
        assert refused.process.wait(30) == 1
        assert "set openvswitch.directory" in refused.log.read_text()
        assert not tools.answers()
    finally:
        other_instance.stop()
