"""The systemd unit of the controller: a command that there is, and no more than it needs."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from mcagent.cli.common import exit_codes
from mcagent.cli.node import controller as controller_command
from mcagent.controller.config import SCHEMA, ControllerRole
from mcagent.controller.run import TURN

UNIT = Path(__file__).parents[2] / "systemd" / "mcagent-controller@.service"


def values(key: str) -> list[str]:
    """Return all values of a directive."""
    return [line.partition("=")[2] for line in UNIT.read_text().splitlines() if line.partition("=")[0] == key]


def test_the_command_line_and_environment_are_ones_that_the_controller_takes() -> None:
    """The flags parse for each role, and the kubeconfig comes by a variable of the configuration."""
    parser = argparse.ArgumentParser()
    controller_command.add_arguments(parser)
    for role in ControllerRole:
        program, command, *flags = shlex.split(values("ExecStart")[0].replace("%i", role))
        assert Path(program).is_absolute()
        assert command == "controller"
        assert parser.parse_args(flags).role == role
    variables = [variable for variable in values("Environment") if not variable.startswith("MALLOC_")]
    assert len(variables) == 1
    assert variables[0].partition("=")[0] in {SCHEMA.variable(key) for key in SCHEMA.keys}


def test_it_has_no_privilege_and_is_restarted_only_where_that_helps() -> None:
    """No capability, a user of its own; a wrong configuration is not tried again; a hung process is ended."""
    assert values("CapabilityBoundingSet") == [""]
    assert values("DynamicUser") == ["yes"]
    assert values("RestartPreventExitStatus") == [str(exit_codes.USAGE)]
    assert float(values("WatchdogSec")[0]) >= 5 * TURN
    assert float(values("TimeoutStopSec")[0]) >= 25


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_itself_finds_nothing_wrong(tmp_path: Path) -> None:
    """`systemd-analyze verify` is silent, and `security` sees little exposure."""
    text = UNIT.read_text().replace("ExecStart=/opt/mcagent/bin/mcagent", "ExecStart=/bin/true")
    unit = tmp_path / "mcagent-controller@member.service"
    unit.write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    lines = [line for line in verified.stderr.splitlines() if unit.name in line]
    assert (verified.returncode, lines) == (0, [])
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rated.returncode == 0, rated.stdout[-500:] + rated.stderr
