"""A lab whose maker was killed is removed by the command that tests and demos begin with; labs in use stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools import leftovers
from devtools.lab import state
from devtools.lab.lab import Lab
from devtools.lab.topology import generate
from devtools.nodes import netns
from devtools.waiting import wait_until
from tests.worlds.labs import fresh_name

pytestmark = pytest.mark.packets
_MAKE = """
import pathlib, sys
from devtools.lab.lab import Lab
from devtools.lab.topology import generate
Lab.up(generate(name=sys.argv[1], clusters=1, workers=0), root=pathlib.Path(sys.argv[2]), agents=False)
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """Give a directory of labs which no other run on this machine looks into."""
    with tempfile.TemporaryDirectory(prefix=f"mct.{os.getpid()}.") as directory:
        yield Path(directory)


def test_a_lab_whose_maker_was_killed_half_way_is_removed(root: Path) -> None:
    """The lab of a process that runs stays, with all its processes."""
    dead_lab = Lab(fresh_name(), root)
    with Lab.up(generate(name=fresh_name(), clusters=1, workers=0), root=root, agents=False) as lab:
        argv = [sys.executable, "-c", _MAKE, dead_lab.name, str(root)]
        with subprocess.Popen(argv, start_new_session=True) as child:
            nodes = dead_lab.state.directory / "nodes"
            wait_until(lambda: any(nodes.glob("*/ovs/ovs-vswitchd.pid")), "a Node of the lab", timeout=60)
            assert list(leftovers.remove(leftovers.labs(root))) == []
            os.kill(child.pid, signal.SIGKILL)
        names = dead_lab.state.namespaces()
        before = lab.state.processes(), lab.ovs_processes()
        assert list(leftovers.remove(leftovers.labs(root))) == [
            f"removed what an interrupted run left: lab {dead_lab.name}"
        ]
        assert not dead_lab.state.directory.exists()
        assert not [name for name in names if netns.exists(name)]
        assert state.marked(dead_lab.state.directory) == []
        assert list(leftovers.remove(leftovers.labs(root))) == []
        assert (lab.state.processes(), lab.ovs_processes()) == before
        assert all(process.alive for process in lab.state.processes().values())
