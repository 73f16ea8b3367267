"""A flag that several commands have is the same in all of them: its letters, its value and its help."""

from __future__ import annotations

import argparse
import io
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcagent.cli.common.confirming import NoConsentError, confirm
from mcagent.cli.common.setting_flags import load_settings
from mcagent.cli.main import COMMANDS, command_of, parser_of

OTHERS = {"agent", "controller", "config", "cleanup"}  # their flags are the keys of the configuration
SAME_HELP = ("--kubeconfig", "--context", "--all", "--yes", "--config", "--agents", "--agents-ca", "--agents-port")
SEVERAL = {"check", "doctor"}  # with --context again for another cluster


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a command's parser and those of its actions."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for of_action in action.choices.values():
                yield from parsers(of_action)


def test_shared_flags_are_declared_once() -> None:
    """Of two declarations one is wrong, or says less."""
    forms = defaultdict(set)
    for name in set(COMMANDS) - OTHERS:
        for parser in parsers(parser_of(command_of(name), name)):
            shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
            for action in shown:
                for flag in {*action.option_strings} & {*SAME_HELP, "--namespace", "--output"}:
                    varies = flag not in SAME_HELP or (flag == "--context" and name in SEVERAL)
                    forms[flag].add((*action.option_strings, action.metavar, "" if varies else action.help))
    assert forms.pop("--context") == {
        ("--context", "NAME", text) for text in ("of the kubeconfig [its current one]", "")
    }
    trace_also_reads_the_config_map = forms.pop("--config")
    assert len(trace_also_reads_the_config_map) == 2
    assert {flag: variants for flag, variants in forms.items() if len(variants) != 1} == {}
    assert {"-A", "-n", "-o"} <= {variant[0] for variants in forms.values() for variant in variants}


@pytest.mark.parametrize("command", ["gateways", "status", "top", "plan", "doctor", "drain", "check", "get"])
def test_a_kubeconfig_may_be_named_by_a_relative_path(command: str) -> None:
    """As with kubectl; and it comes before that of the configuration."""
    words = {"get": ["gateway"], "check": ["--pre"]}.get(command, [])
    args = parser_of(command_of(command), command).parse_args([*words, "--kubeconfig", "east.yaml"])
    assert args.kubeconfig == "east.yaml"
    if command != "get":
        assert load_settings(args, node_needed=False).kubeconfig == "east.yaml"


def test_the_kubeconfig_of_the_configuration_counts_without_a_flag(tmp_path: Path) -> None:
    """Commands on a Node read that of its agent."""
    file = tmp_path / "agent.yaml"
    file.write_text("kubeconfig: /etc/mcagent/kubeconfig\n")
    args = parser_of(command_of("gateways"), "gateways").parse_args(["--config", str(file)])
    assert load_settings(args, node_needed=False).kubeconfig == "/etc/mcagent/kubeconfig"


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e9", "soon"])
@pytest.mark.parametrize(
    ("command", "flag"),
    [("drain", "--grace"), ("drain", "--timeout"), ("wireguard", "--settle"), ("deploy", "--timeout")],
)
def test_a_time_is_a_number_of_seconds_that_passes(
    command: str, flag: str, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Waiting "nan" seconds has no end, and sleeping "-1" is a traceback when a key is announced already."""
    words = ["show"] if command == "wireguard" else []
    with pytest.raises(SystemExit):
        parser_of(command_of(command), command).parse_args([*words, f"{flag}={seconds}"])
    assert f'argument {flag}: must be seconds from 0 to 604800, is "{seconds}"' in capsys.readouterr().err


class Terminal(io.StringIO):
    """Input from a terminal; "" is Ctrl-D."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.mark.parametrize(("answer", "consent"), [("y\n", True), ("YES\n", True), ("\n", False), ("", False)])
def test_a_question_has_an_answer_and_is_no_output(
    answer: str, consent: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of the input is a no, not a traceback; in `... > file` the user still reads the question."""
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    if consent:
        confirm(["One Service is lost."], "Leave?")
    else:
        with pytest.raises(NoConsentError, match="nothing is deleted"):
            confirm(["One Service is lost."], "Leave?")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "One Service is lost. Leave? [y/N] "
