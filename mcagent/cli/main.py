"""The command `mcagent`: finds the module of a command and hands over to it.

Imports nothing heavy: what a command needs it imports itself, so that `mcagent --help` answers at once.
A command's module has `add_arguments(parser)` and `run(args) -> exit code`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from mcagent.cli.common import exit_codes
from mcagent.model.errors import McagentError

COMMANDS = {
    "agent": "run the agent of this Node",
    "controller": "run the control plane of this cluster, as member or as leader",
    "openvswitch": "run Open vSwitch on a Node that has none",
    "status": "show how the agent of this Node is doing",
    "trace": "show the way of a packet between clusters, hop by hop, and why it ends",
    "page": "print a page of this Node's agent as JSON",
    "top": "show the traffic between clusters as it flows",
    "benchmark": "measure throughput and round trips between two clusters, and between their Nodes",
    "gateways": "show which gateways are used, live or why not, since when and who decided",
    "doctor": "say what is wrong on a Node or in whole clusters, why, and what to type next",
    "drain": "let other gateways take over from a Node, without losing a packet",
    "undrain": "let a drained Node be a gateway again",
    "wireguard": "show the encryption between clusters, or change this Node's key without loss",
    "policy": "show the rules of policies between clusters, or which of them decides",
    "plan": "show what the agent would change now, and change nothing",
    "cleanup": "remove everything from this Node that is mcagent's, and only that",
    "config": "check a configuration, or show the one in force",
    "deploy": "print what a cluster needs of this version, or apply it",
    "uninstall": "remove mcagent from a cluster, in the right order",
    "clusterset": "make, join, leave or destroy a ClusterSet",
    "membertoken": "make, show or delete the token of a member cluster",
    "dns": "have CoreDNS answer names of shared Services, or not any more",
    "migrate": "say what a change from Antrea's multi-cluster controller asks for",
    "get": "show the objects of a ClusterSet: who is a member, what is exported, what conflicts",
    "completion": "print what makes a shell complete commands and flags",
    "version": "print the version",
}

ADMIN = frozenset(
    {"clusterset", "deploy", "dns", "get", "membertoken", "migrate", "uninstall"}
)  # their modules are in mcagent.cli.admin

_EPILOG = f"""\
`mcagent COMMAND --help` explains a command and gives examples.

{exit_codes.EXPLAINED}
"""


class Command(Protocol):
    """What the module of a command offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare flags and arguments; set `description` and, with examples, `epilog`."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; return the exit code. McagentError and OSError become messages."""


def _parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name:<11} {text}" for name, text in COMMANDS.items())
    return argparse.ArgumentParser(
        prog="mcagent",
        usage="mcagent [--help] [--version] COMMAND ...",
        description=f"Kubernetes multi-cluster networking for any CNI.\n\ncommands:\n{listing}",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--version"]:
        arguments[0] = "version"
    if arguments[:1] == ["__complete"]:  # what shells ask: see `mcagent completion`
        from mcagent.cli.common.completing import answer

        return answer(arguments[1:])
    if not arguments or arguments[0] not in COMMANDS:
        parser = _parser()
        parser.add_argument("command", choices=[*COMMANDS], help=argparse.SUPPRESS)
        parser.parse_args(arguments[:1])  # prints help, or says what is wrong, and leaves
    return run_command(command_of(arguments[0]), f"mcagent {arguments[0]}", arguments[1:])


def command_of(name: str) -> Command:
    """Return the module of one of `COMMANDS`."""
    module = f"mcagent.cli.{'admin.' if name in ADMIN else ''}{name}"
    return cast(Command, importlib.import_module(module))


def parser_of(command: Command, program: str) -> argparse.ArgumentParser:
    """Return the parser of a command's arguments. `program` is what its messages call it."""
    parser = argparse.ArgumentParser(
        prog=program, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    command.add_arguments(parser)
    if exit_codes.EXPLAINED not in (parser.epilog or ""):
        parser.epilog = f"{parser.epilog or ''}\n{exit_codes.EXPLAINED}\n"
    return parser


def run_command(command: Command, program: str, argv: Sequence[str]) -> int:
    """Run one command with its arguments; return the exit code. `program` is what its messages call it."""
    args = parser_of(command, program).parse_args(argv)
    try:
        return command.run(args)
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        return exit_codes.FAILED
    except (McagentError, OSError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return exit_codes.of_error(error)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
