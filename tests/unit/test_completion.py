"""Tab completion: what may come next, asked as bash, zsh, fish and kubectl ask it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import ANY

import argcomplete
import pytest
from argcomplete.finders import CompletionFinder

from mcagent.agent.config import KEYS
from mcagent.cli.common.completing import completed_parser
from mcagent.cli.completion import SHELLS
from mcagent.cli.main import COMMANDS, main

REPOSITORY = Path(__file__).parents[2]
KUBECTL = "from mcagent.cli.common.completing import kubectl; kubectl()"


@pytest.fixture(autouse=True)
def descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, argcomplete writes its log to descriptor 9, which may be pytest's."""
    monkeypatch.setattr(CompletionFinder, "_init_debug_stream", lambda _: None)


@pytest.fixture
def completions(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """A function that returns the completions of the end of a line."""

    def words(line: str) -> list[str]:
        environ = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        output = io.StringIO()
        argcomplete.autocomplete(
            completed_parser(line),
            always_complete_options=False,
            exit_method=lambda _code: None,
            output_stream=output,
            default_completer=argcomplete.completers.SuppressCompleter(),
        )
        return [word.strip() for word in output.getvalue().splitlines()]

    return words


def test_commands_flags_and_values_are_completed(completions: Callable[[str], list[str]]) -> None:
    """Each from the parsers: commands, subcommands, flags, choices."""
    assert set(COMMANDS) <= set(completions("mcagent "))
    assert completions("mcagent pl") == ["plan"]
    assert completions("mcagent plan --what") == ["--what-if"]
    assert completions("mcagent plan -o ") == ["text", "json"]
    assert completions("mcagent plan --output=j") == ["--output=json"]
    assert completions("mcagent policy exp") == ["explain"]
    assert completions("mcagent policy explain --to-c") == ["--to-context"]
    assert completions("mcagent completion f") == ["fish"]


def test_contexts_are_those_of_the_kubeconfig(
    completions: Callable[[str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every command, also where the flag may be repeated; without a kubeconfig there is none."""
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text("contexts: [{name: east}, {name: west}]")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    for command in ("get", "doctor --all", "drain", "gateways", "plan", "top", "status", "uninstall"):
        assert completions(f"mcagent {command} --context ") == ["east", "west"]
    assert completions(f"mcagent status --kubeconfig {kubeconfig} --context w") == ["west"]
    (tmp_path / "other").write_text("contexts: [{name: north}]")
    monkeypatch.setenv("KUBECONFIG", f"{kubeconfig}:{tmp_path / 'other'}")
    assert completions("mcagent get --context ") == ["east", "west", "north"]
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert completions("mcagent get --context ") == []


@pytest.mark.parametrize("line", ["plan -f ", "plan ", "drain ", "config check "])
def test_where_anything_may_come_nothing_is_offered(line: str, completions: Callable[[str], list[str]]) -> None:
    """Then the shell offers files."""
    assert completions(f"mcagent {line}") == []


@pytest.mark.parametrize("name", [*COMMANDS])
def test_every_command_completes_its_flags(name: str, completions: Callable[[str], list[str]]) -> None:
    """No parser breaks it, and every command has at least its help."""
    assert "--help" in completions(f"mcagent {name} -")


def test_flags_of_keys_are_completed_where_they_exist(completions: Callable[[str], list[str]]) -> None:
    """`--help` leaves them out; completion of the agent has them, and of other commands no removed flag."""
    assert {key.flag for key in KEYS} <= set(completions("mcagent agent --"))
    assert completions("mcagent status --ovs") == []


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["sta"], [f"status\t{COMMANDS['status']}", ":4"]),
        (["plan", "-f", ""], [":0"]),
        (["drain", "--con"], ["--context\tof the kubeconfig [its current one]", ANY, ":4"]),
        ([""], [*(f"{name}\t{text}" for name, text in COMMANDS.items()), ":4"]),
    ],
    ids=["command", "file", "flag", "all"],
)
def test_kubectl_is_told_whether_files_come(arguments: list[str], lines: list[str]) -> None:
    """A plugin's completion ends with a directive, as kubectl's own does."""
    environ = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", KUBECTL, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ, timeout=60)
    assert done.stdout.splitlines() == lines


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment with a command mcagent, and the scripts in files."""
    program = tmp_path / "mcagent"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mcagent.cli.main "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    for name in SHELLS:
        script = subprocess.run([program, "completion", name], capture_output=True, check=True, cwd=REPOSITORY)
        (tmp_path / name).write_bytes(script.stdout)
    root = f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": root, "HOME": str(tmp_path), "SCRIPTS": str(tmp_path)}


def said(shell: dict[str, str], *command: str) -> list[str]:
    """Run a command; return its lines."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=shell, timeout=60)
    return done.stdout.splitlines()


def test_bash_completes(shell: dict[str, str]) -> None:
    """The function that bash calls fills what bash reads, with bash's own splitting of words."""
    script = (
        'source "$SCRIPTS/bash"; complete -p mcagent; COMP_TYPE=9; '
        'COMP_LINE="mcagent plan --output=j"; COMP_POINT=${#COMP_LINE}; '
        "_python_argcomplete mcagent; echo ${COMPREPLY[@]}; "
        'COMP_LINE="mcagent undr"; COMP_POINT=${#COMP_LINE}; _python_argcomplete mcagent; echo ${COMPREPLY[@]}'
    )
    registered, value, command = said(shell, "bash", "-c", script)
    assert registered.endswith("-F _python_argcomplete mcagent")
    assert (value, command) == ("json", "undrain")


def test_zsh_completes(shell: dict[str, str]) -> None:
    """The function gives zsh words with their meaning."""
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh on this machine: its completion is not tested")
    script = (
        'compdef() { :; }; _describe() { print -l "${(@P)2}"; }; source "$SCRIPTS/zsh"; '
        'words=(mcagent undr); BUFFER="mcagent undr"; CURSOR=${#BUFFER}; _python_argcomplete mcagent'
    )
    assert said(shell, "zsh", "-f", "-c", script) == [f"undrain:{COMMANDS['undrain']}"]


def test_fish_completes(shell: dict[str, str]) -> None:
    """Fish itself tells what it would offer."""
    if shutil.which("fish") is None:
        pytest.skip("there is no fish on this machine: its completion is not tested")
    script = 'source "$SCRIPTS/fish"; complete -C "mcagent undr"; complete -C "mcagent plan -o j"'
    undrain, value = said(shell, "fish", "--no-config", "-c", script)
    assert undrain.startswith("undrain")
    assert value.startswith("json")


def test_the_command_prints_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    """One for each shell, for the program mcagent."""
    for name in SHELLS:
        assert main(["completion", name]) == 0
        script = capsys.readouterr().out
        assert "_ARGCOMPLETE" in script
        assert "mcagent" in script


def test_a_shell_is_answered_on_the_descriptor_that_it_reads(shell: dict[str, str]) -> None:
    """Nothing else of the program runs, and standard output stays empty."""
    environ = {**shell, "_ARGCOMPLETE": "1", "COMP_LINE": "mcagent version", "COMP_POINT": "12"}
    done = subprocess.run(
        ["bash", "-c", "mcagent version 8>answer 9>&2"],
        capture_output=True, text=True, check=True, env=environ, cwd=shell["SCRIPTS"], timeout=60,
    )  # fmt: skip
    assert done.stdout == ""
    assert (Path(shell["SCRIPTS"]) / "answer").read_text(encoding="utf-8").strip() == "version"
