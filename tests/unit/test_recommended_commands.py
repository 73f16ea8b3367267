"""Every command that mcagent recommends exists, with these arguments: the argument parsers accept it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.doctor_page import all_checks
from mcagent.cli.main import COMMANDS, command_of, parser_of
from mcagent.core.causes import CAUSES

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/tutorials").glob("*.md")])
# A command in a sentence: from its name to the end of the clause, or to a word that continues the sentence.
_COMMAND = re.compile(r"(?<![\w./`-])mcagent (?P<words>[a-z][^;:,()`|\n]*)")
_SENTENCE = re.compile(
    r"\s(?:on|in|says|shows|measures|reads|with|for|to|and|or|where|which|if|does|is|removes|by|at|names|from|of)\s.*"
)
# A command line after an optional prompt; an error message begins with the command's name and a colon.
_LINE = re.compile(r"\s*(?:\(?[\w-]*\)?\$ )?mcagent ([a-z]+(?![a-z:])[^#|>&;]*)")


def recommended(text: str) -> Iterator[str]:
    """Yield the commands of mcagent in a text of the doctor, without what follows in the sentence."""
    for match in _COMMAND.finditer(re.sub(r"[{}]", "", text.replace("{role}", "member"))):
        yield _SENTENCE.sub("", f"{match['words']} ").strip().rstrip(".")


def refusal(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return why the parser refuses a command; "" if it accepts it."""
    name, *arguments = command.split()
    if name not in COMMANDS:
        return f"no such command: {name}"
    try:
        parser_of(command_of(name), f"mcagent {name}").parse_args(arguments)
    except SystemExit as end:
        return "" if end.code == 0 else capsys.readouterr().err.strip().splitlines()[-1]
    return ""


TEXTS = {
    **{f"{check.name}/{reason}": cause.do for check in all_checks() for reason, cause in check.causes.items()},
    **{reason: cause.do for reason, cause in CAUSES.items()},
}


def test_commands_of_the_doctor_and_of_problems_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """ "what to type next" can be typed: of the doctor's findings, problems of `mcagent status`, and Events."""
    commands = {(name, command) for name, text in TEXTS.items() for command in recommended(text)}
    assert len(commands) > 30
    refused = {f"{name}: {command}": why for name, command in commands if (why := refusal(command, capsys))}
    assert refused == {}


def test_a_command_that_does_not_exist_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """The commands that the doctor once recommended, and a flag that no command has."""
    (wrong,) = recommended("apply the manifests again: mcagent deploy member --apply")
    assert "unrecognized arguments: member" in refusal(wrong, capsys)
    assert "no such command" in refusal("repair now", capsys)
    assert "--loudly" in refusal("doctor --loudly", capsys)
    assert list(recommended("mcagent gateways --history; mcagent status on the peer")) == [
        "gateways --history",
        "status",
    ]
    assert refusal("gateways --history", capsys) == refusal("status", capsys) == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_documentation_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In lines of blocks; an ellipsis, brackets and what a shell would do with the output are left out."""
    refused = {}
    for command in block_commands(page.read_text(encoding="utf-8")):
        if why := refusal(command, capsys):
            refused[f"mcagent {command}"] = why
    assert refused == {}


def block_commands(text: str) -> Iterator[str]:
    """Yield the command lines of mcagent in a page's indented and fenced blocks."""
    fenced = False
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.startswith("```"):
            fenced = not fenced
        match = _LINE.match(line) if fenced or line.startswith("    ") else None
        if match and not re.search(r"…|\.\.\.|\[|\$\(|<", match[1]):
            yield " ".join(re.sub(r"'[^']*'|\"[^\"]*\"", "TEXT", match[1]).split())
