"""The command `mcagent`: finds the module of a command and hands over to it.

Imports nothing heavy: what a command needs it imports itself, so that `mcagent --help` answers at once.
A command's module has `add_arguments(parser)` and `run(args) -> exit code`.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from mcagent.cli.common import exit_codes
from mcagent.cli.common.tables import safe
from mcagent.model.errors import McagentError

GROUPS = {
    "Basic commands": {
        "get": "Show the objects of a ClusterSet: members, exports, conflicts",
        "status": "Show the status of this Node's agent, or of a whole cluster",
        "gateways": "Show the gateways of each cluster: live or not, since when, and why",
        "top": "Show the traffic between clusters",
        "policy": "Show the policy rules between clusters, or the rule that decides",
    },
    "Cluster management commands": {
        "check": "Check Nodes and clusters before the installation",
        "deploy": "Print the manifests of this version for a cluster, or apply them",
        "clusterset": "Create, join, leave or destroy a ClusterSet",
        "membertoken": "Create, show or delete the token of a member cluster",
        "dns": "Configure the cluster's CoreDNS for names of shared Services",
        "mc": "Run a command line of `antctl mc`",
        "migrate": "Check what a migration from Antrea's multi-cluster controller needs",
        "uninstall": "Remove mcagent from a cluster, in the right order",
    },
    "Gateway maintenance commands": {
        "drain": "Move the traffic of a Node to other gateways without packet loss",
        "undrain": "Return a drained Node to service",
        "wireguard": "Show the encryption between clusters, or rotate the key of this Node",
    },
    "Troubleshooting commands": {
        "doctor": "Diagnose a Node or whole clusters, with causes and remedies",
        "trace": "Trace a packet and its answer between clusters, hop by hop",
        "plan": "Show what the agent would change now, or after a loss, a drain or new objects",
        "benchmark": "Measure throughput and round trips between two clusters, and between their Nodes",
    },
    "Node components": {
        "agent": "Run the agent of this Node",
        "controller": "Run the control plane of a cluster, as a member or as the leader",
        "openvswitch": "Run Open vSwitch on a Node that has none",
        "config": "Check a configuration of the agent, or print the effective one",
        "page": "Print a page of this Node's agent as JSON",
        "cleanup": "Remove all resources of mcagent from this Node",
    },
    "Other commands": {
        "completion": "Print the completion script of a shell",
        "version": "Print the version of this program, or of all components of a cluster",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}

# The packages of mcagent.cli with the modules of commands; those of other commands are in mcagent.cli itself.
_PACKAGES = {
    "admin": ("clusterset", "deploy", "dns", "get", "membertoken", "migrate", "uninstall"),
    "inspect": ("check", "doctor", "gateways", "page", "plan", "policy", "status", "top", "trace"),
    "node": ("agent", "cleanup", "config", "controller", "openvswitch"),
}

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
    listing = "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:<12} {text}" for name, text in group.items())])
        for title, group in GROUPS.items()
    )
    return argparse.ArgumentParser(
        prog="mcagent",
        usage="mcagent [--help] [--version] COMMAND ...",
        description=f"Kubernetes multi-cluster networking for any CNI.\n\n{listing}",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # as stderr has it: signs such as ✓ are in no Latin-1
        sys.stdout.reconfigure(errors="backslashreplace")
    if argv is None and "_ARGCOMPLETE" in os.environ:  # a shell asks for completions: see `mcagent completion`
        from mcagent.cli.common.completing import complete

        complete()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--version"]:
        arguments[0] = "version"
    if arguments[:1] == ["help"]:  # as kubectl has it: `mcagent help COMMAND`
        arguments = [*arguments[1:2], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        _parser().print_help()
        return exit_codes.OK
    if arguments[0] not in COMMANDS:
        word, commands = arguments[0], ", ".join(COMMANDS)
        _parser().error(f'unknown command "{word}"{_similar(word)}; known are {commands}')
    return run_command(command_of(arguments[0]), f"mcagent {arguments[0]}", arguments[1:])


def _similar(word: str) -> str:
    from mcagent.model.keys.values import did_you_mean

    return did_you_mean(word, COMMANDS)


def command_of(name: str) -> Command:
    """Return the module of one of `COMMANDS`."""
    package = next((f".{package}" for package, commands in _PACKAGES.items() if name in commands), "")
    return cast(Command, importlib.import_module(f"mcagent.cli{package}.{name}"))


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
        words = _words(error).removeprefix(f"{program.rsplit(maxsplit=1)[-1]}: ")
        print(f"{program}: {safe(words)}", file=sys.stderr)
        return exit_codes.of_error(error)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def _words(error: McagentError | OSError) -> str:
    """Return an error for people: that of a file names it first, without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


if __name__ == "__main__":
    sys.exit(main())
