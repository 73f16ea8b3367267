"""The systemd unit: it starts the command that there is, and gives it no more than it needs."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from mcagent.agent.config import Settings
from mcagent.agent.control_loop.loop import IDLE_TURN, STALLED
from mcagent.cli.common import exit_codes
from mcagent.cli.common.setting_flags import load_settings
from mcagent.cli.node import agent as agent_command
from mcagent.dataplane.wireguard.userspace import SOCKETS

UNIT = Path(__file__).parents[2] / "systemd" / "mcagent-agent.service"


def directives() -> dict[str, dict[str, list[str]]]:
    """Return sections, keys and their values, several of a key in order (systemd.syntax(7))."""
    sections: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    section = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, f"not a directive: {line}"
            sections[section][key].append(value)
    return sections


@pytest.fixture
def service() -> dict[str, list[str]]:
    """Give the section [Service]."""
    return directives()["Service"]


def test_the_command_line_and_environment_are_ones_that_the_agent_takes(
    service: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flags parse, and the Node's name reaches the configuration by the variable that the unit sets."""
    program, command, *flags = shlex.split(service["ExecStart"][0])
    assert Path(program).is_absolute()
    assert command == "agent"
    name, _, value = service["Environment"][0].partition("=")
    assert value == "%H"
    monkeypatch.setenv(name, "node-7")
    config = tmp_path / "agent.yaml"
    config.write_text("clusterID: west\n")
    parser = argparse.ArgumentParser()
    agent_command.add_arguments(parser)
    args = parser.parse_args(flags)
    assert Path(args.config).parent.name == service["ConfigurationDirectory"][0]
    args.config = str(config)
    settings = load_settings(args)
    assert (settings.core.node_name, settings.core.cluster_id) == ("node-7", "west")


def test_lock_and_sockets_lie_where_systemd_lets_the_agent_write(service: dict[str, list[str]]) -> None:
    """With ProtectSystem=strict its run directory and that of wireguard-go have to be made by systemd."""
    default = Settings.__dataclass_fields__["run_dir"].default
    directories = {f"/run/{name}" for name in service["RuntimeDirectory"][0].split()}
    assert directories == {str(default), str(SOCKETS).removeprefix("/var")}
    assert service["ProtectSystem"] == ["strict"]


def test_stopping_leaves_the_dataplane_alone(service: dict[str, list[str]]) -> None:
    """SIGTERM to the agent only, wireguard-go goes on, and no command that cleans up."""
    assert service["KillMode"] == ["process"]
    assert "KillSignal" not in service
    assert not [key for key in service if key.startswith("ExecStop")]
    assert directives()["Unit"].keys().isdisjoint({"BindsTo", "PartOf", "Requires", "StopPropagatedFrom"})


def test_a_hung_agent_is_ended_and_a_waiting_one_is_not(service: dict[str, list[str]]) -> None:
    """The watchdog is several turns of the loop; start-up may last while the API server is away."""
    assert service["Type"] == ["notify"]
    assert 5 * IDLE_TURN <= float(service["WatchdogSec"][0]) <= STALLED
    assert service["TimeoutStartSec"] == ["infinity"]
    assert service["Restart"] == ["always"]
    assert service["RestartPreventExitStatus"] == [str(exit_codes.USAGE)]


def test_it_has_the_capabilities_and_sockets_it_uses(service: dict[str, list[str]]) -> None:
    """NET_ADMIN alone; no new privileges come by a program it runs."""
    assert service["CapabilityBoundingSet"] == ["CAP_NET_ADMIN"]
    assert set(service["RestrictAddressFamilies"][0].split()) == {
        "AF_UNIX",
        "AF_NETLINK",
        "AF_INET",
        "AF_INET6",
    }
    for key in ("NoNewPrivileges", "PrivateTmp", "ProtectKernelTunables", "RestrictNamespaces"):
        assert service[key] == ["yes"], key
    assert service["DevicePolicy"] == ["closed"]
    assert service["DeviceAllow"] == ["/dev/net/tun rw"]


def test_the_key_lies_where_systemd_lets_the_agent_write(service: dict[str, list[str]]) -> None:
    """The directory of the WireGuard key is inside the one that systemd makes, for root alone."""
    default = str(Settings.__dataclass_fields__["wireguard_key_dir"].default)
    assert default.startswith(f"/var/lib/{service['StateDirectory'][0]}/")
    assert service["StateDirectoryMode"] == ["0700"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_itself_finds_nothing_wrong(tmp_path: Path) -> None:
    """`systemd-analyze verify` is silent, and `security` sees little exposure."""
    # It wants the program to be there.
    text = UNIT.read_text().replace("ExecStart=/opt/mcagent/bin/mcagent agent", "ExecStart=/bin/true agent")
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if UNIT.name in line]) == (0, [])
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rated.returncode == 0, rated.stdout[-500:] + rated.stderr
