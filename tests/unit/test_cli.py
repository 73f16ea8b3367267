"""The command line: what it finds, what it imports, how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mcagent.cli.main import COMMANDS, main

HEAVY = ("kubernetes", "ovs", "pyroute2", "prometheus_client", "yaml")


def loaded_after(*arguments: str) -> tuple[int, set[str], str]:
    """Run a command line in a fresh interpreter; return exit code, the heavy modules loaded, and output."""
    code = (
        "import sys\n"
        "from mcagent.cli.main import main\n"
        "try: code = main(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code or 0\n"
        f"print('loaded', *[name for name in {HEAVY!r} if name in sys.modules])\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    *_, last = done.stdout.splitlines()
    return done.returncode, set(last.split()[1:]), done.stdout + done.stderr


def test_help_imports_nothing_heavy() -> None:
    """`mcagent --help` lists the commands without loading a client library."""
    code, heavy, output = loaded_after("--help")
    assert code == 0
    assert heavy == set()
    assert "cleanup" in output or "config" in output


def test_help_of_each_command_gives_examples_and_exit_codes() -> None:
    """Every command with arguments explains itself, and loads no client library for it."""
    for name in COMMANDS:
        if name in ("version", "lab"):
            continue
        code, heavy, output = loaded_after(name, "--help")
        assert code == 0, output
        assert not heavy & {"kubernetes", "ovs", "pyroute2"}, name
        assert "examples:" in output
        assert "exit codes:" in output


def test_unknown_commands_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message lists what there is."""
    with pytest.raises(SystemExit) as end:
        main(["reticulate"])
    assert end.value.code == 2
    assert "config" in capsys.readouterr().err


def test_config_check_tells_all_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad file ends with the code for bad input; every finding is printed."""
    file = tmp_path / "agent.yaml"
    file.write_text("mtu: 1\nnone: 1\n")
    assert main(["config", "check", str(file)]) == 2
    told = capsys.readouterr().err
    assert "mtu: must be" in told
    assert "none: unknown key" in told
    file.write_text("mtu: 1400\n")
    assert main(["config", "check", str(file)]) == 0


def test_config_show_prints_what_is_in_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File and flags are put together, and the result can be read by a program."""
    file = tmp_path / "agent.yaml"
    file.write_text("mtu: 1400\npodCIDRs: [10.0.0.0/16]\n")
    assert main(["config", "show", str(file), "--node-name", "n1", "--enable-gateway=false", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["mtu"] == 1400
    assert shown["podCIDRs"] == ["10.0.0.0/16"]
    assert shown["nodeName"] == "n1"
    assert shown["enableGateway"] is False
