"""docs/reference/cli.md: `python -m devtools.cli_page FILE` writes it from the parsers of the commands.

Does not use argparse's own help texts, which differ from one Python to the next.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from mcagent.cli.common import exit_codes
from mcagent.cli.main import COMMANDS, GROUPS, command_of, parser_of

KEYS = "configuration keys"  # a group of flags that docs/configuration.md has
_HEAD = """\
# Commands

Every command of `mcagent`, made from the program by `make docs`. `mcagent COMMAND --help` says the same, and
`mcagent completion` makes shells complete all of it. As a plugin of kubectl: `kubectl mcagent COMMAND`.
"""


def page() -> str:
    """Return the whole page."""
    lines = [_HEAD]
    for title, group in GROUPS.items():
        lines += [f"| {title} | |", "| --- | --- |"]
        lines += [f"| [`{name}`](#mcagent-{name}) | {_cell(text)} |" for name, text in group.items()]
        lines.append("")
    lines += ["## Exit codes", "", *_block(exit_codes.EXPLAINED.partition("\n")[2]), ""]
    for name in COMMANDS:
        lines += _command(parser_of(command_of(name), f"mcagent {name}"), 2)
    return "\n".join(lines).rstrip() + "\n"


def _command(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} {parser.prog}", "")
    if parser.description:
        yield from (parser.description, "")
    yield from _arguments(parser)
    epilog = (parser.epilog or "").replace(exit_codes.EXPLAINED, "").strip("\n")
    if epilog:
        yield from (*_block(epilog), "")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in dict.fromkeys(action.choices.values()):
                yield from _command(inner, level + 1)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    keys = {action for group in parser._action_groups if group.title == KEYS for action in group._group_actions}
    shown = [
        action
        for action in parser._actions
        if action.help != argparse.SUPPRESS and action not in keys and not _is_subcommand(action)
    ]
    rows = [f"| {_names(action)} | {_cell(_meaning(action))} |" for action in shown if action.dest != "help"]
    if rows:
        yield from ("| argument | |", "| --- | --- |", *rows, "")
    if keys:
        yield from ("Each key of the configuration is a flag, too: [configuration.md](../configuration.md).", "")


def _is_subcommand(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _names(action: argparse.Action) -> str:
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    value = action.metavar if isinstance(action.metavar, str) else choices or action.dest.upper()
    if not action.option_strings:
        return _cell(f"`{value}{' ...' if action.nargs in ('*', '+') else ''}`")
    return _cell(f"`{', '.join(action.option_strings)}{'' if action.nargs == 0 else f' {value}'}`")


def _meaning(action: argparse.Action) -> str:
    text = action.help or ""
    return text % {"default": action.default, "prog": "mcagent"} if "%" in text else text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _block(text: str) -> list[str]:
    """Return a text as it is shown in a terminal."""
    return ["```text", *(line.rstrip() for line in text.splitlines()), "```"]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
