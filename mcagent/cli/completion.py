"""`mcagent completion`: the script with which a shell asks mcagent for completions (argcomplete)."""

from __future__ import annotations

import argparse

from mcagent.cli.common import exit_codes

_EPILOG = """\
examples:
  source <(mcagent completion bash)                                        # in this shell
  mcagent completion bash > /etc/bash_completion.d/mcagent                 # in every one
  mcagent completion zsh > "${fpath[1]}/_mcagent"                          # with compinit; a new shell has it
  mcagent completion fish > ~/.config/fish/completions/mcagent.fish

The package has kubectl-mcagent and kubectl_complete-mcagent: where both are in $PATH, `kubectl mcagent` works, and
kubectl's own completion asks for the rest.
"""
SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shell."""
    parser.description = "Print the script with which a shell completes commands, flags and their values."
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=SHELLS, help="whose script")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["mcagent"], shell=args.shell))
    return exit_codes.OK
