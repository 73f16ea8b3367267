"""Completion by argcomplete: of what a shell asks (`mcagent completion`), and of what kubectl asks its plugin."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys


def complete() -> None:
    """Write the completions of the line in COMP_LINE where the shell's script expects them, and exit."""
    import argcomplete

    argcomplete.autocomplete(completed_parser(os.environ["COMP_LINE"]), always_complete_options=False)


def kubectl() -> int:
    """Print the completions of the last argument as kubectl expects them of a plugin.

    Each line has a word, a tab and its meaning. The last line is ":0" if kubectl may offer files, else ":4".
    """
    import argcomplete

    *words, last = sys.argv[1:] or [""]
    line = f"{shlex.join(['mcagent', *words])} {shlex.quote(last) if last else ''}"
    os.environ |= {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    os.environ |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_DFS": "\t", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    completions = io.StringIO()
    argcomplete.autocomplete(
        completed_parser(line),
        always_complete_options=False,
        exit_method=lambda _code: None,
        output_stream=completions,
        default_completer=argcomplete.completers.SuppressCompleter(),
    )
    text = completions.getvalue()
    print(f"{text}\n:4" if text else ":0")
    return 0


def completed_parser(line: str) -> argparse.ArgumentParser:
    """Return a parser of the commands. Only the command in `line` has its arguments: the others load no module."""
    from mcagent.cli.main import COMMANDS, command_of

    parser = argparse.ArgumentParser(prog="mcagent", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers()
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, allow_abbrev=False)
        if name in line.split()[1:2]:
            command_of(name).add_arguments(command)
    return parser
