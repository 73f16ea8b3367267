"""Tab completion: what may come next, asked as bash, zsh, fish and kubectl ask it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mcagent.cli.common.completing import candidates, kubectl
from mcagent.cli.completion import SCRIPTS
from mcagent.cli.main import COMMANDS, main


def words(*line: str) -> list[str]:
    """Return the words that may stand in place of the last one."""
    return [word for word, _ in candidates(line)]


def test_commands_flags_and_values_are_completed() -> None:
    """Each from the parsers: commands with their meaning, subcommands, flags, choices."""
    assert set(COMMANDS) < set(words(""))
    assert dict(candidates(["pl"])) == {"plan": COMMANDS["plan"]}
    assert words("plan", "--what") == ["--what-if"]
    assert words("plan", "-o", "") == ["text", "json"]
    assert words("plan", "--output=j") == ["--output=json"]
    assert words("plan", "--output", "=", "j") == ["json"]
    assert words("plan", "--output", "=") == ["text", "json"]
    assert words("policy", "exp") == ["explain"]
    assert words("policy", "explain", "--to-c") == ["--to-context"]
    assert words("completion", "f") == ["fish"]


@pytest.mark.parametrize("line", [("nothing", ""), ("plan", "-f", ""), ("policy", "nothing", ""), ("plan", "")])
def test_where_anything_may_come_nothing_is_offered(line: tuple[str, ...]) -> None:
    """Then the shell offers files."""
    assert words(*line) == []


@pytest.mark.parametrize("name", [*COMMANDS])
def test_every_command_completes_its_flags(name: str) -> None:
    """No parser breaks it, and every command has at least its help."""
    assert "--help" in words(name, "-")


def test_kubectl_is_told_whether_files_come(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin's completion ends with a directive, as kubectl's own does."""
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-mcagent", "sta"])
    assert kubectl() == 0
    assert capsys.readouterr().out.splitlines() == [f"status\t{COMMANDS['status']}", ":4"]
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-mcagent", "plan", "-f", ""])
    kubectl()
    assert capsys.readouterr().out == ":0\n"


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment with a command mcagent, and the scripts in files."""
    program = tmp_path / "mcagent"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mcagent.cli.main "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    for name, script in SCRIPTS.items():
        (tmp_path / name).write_text(script, encoding="utf-8")
    root = str(Path(__file__).parents[2])
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": root, "HOME": str(tmp_path), "SCRIPTS": str(tmp_path)}


def said(shell: dict[str, str], *command: str) -> list[str]:
    """Run a command; return its lines."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=shell, timeout=60)
    return done.stdout.splitlines()


def test_bash_completes(shell: dict[str, str]) -> None:
    """The function that bash calls fills what bash reads, with bash's own splitting of words."""
    script = (
        'source "$SCRIPTS/bash"; complete -p mcagent; '
        "COMP_WORDS=(mcagent plan --output = j); COMP_CWORD=4; _mcagent; echo ${COMPREPLY[@]}; "
        "COMP_WORDS=(mcagent undr); COMP_CWORD=1; _mcagent; echo ${COMPREPLY[@]}"
    )
    assert said(shell, "bash", "-c", script) == ["complete -o default -F _mcagent mcagent", "json", "undrain"]


def test_zsh_completes(shell: dict[str, str]) -> None:
    """The function gives zsh words with their meaning."""
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh on this machine: its completion is not tested")
    script = (
        'compdef() { :; }; _describe() { print -l "${(@P)4}"; }; _files() { print files; }; '
        'source "$SCRIPTS/zsh"; words=(mcagent undr); CURRENT=2; _mcagent; '
        "words=(mcagent plan -f ''); CURRENT=4; _mcagent"
    )
    assert said(shell, "zsh", "-f", "-c", script) == [f"undrain:{COMMANDS['undrain']}", "files"]


def test_fish_completes(shell: dict[str, str]) -> None:
    """Fish itself tells what it would offer."""
    if shutil.which("fish") is None:
        pytest.skip("there is no fish on this machine: its completion is not tested")
    script = 'source "$SCRIPTS/fish"; complete -C "mcagent undr"; complete -C "mcagent plan -o j"'
    assert said(shell, "fish", "--no-config", "-c", script) == [f"undrain\t{COMMANDS['undrain']}", "json"]


def test_the_command_prints_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    """One for each shell."""
    for name, script in SCRIPTS.items():
        assert main(["completion", name]) == 0
        assert capsys.readouterr().out == script
