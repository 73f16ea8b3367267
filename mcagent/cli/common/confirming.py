"""The question before a command takes away what others use: it says what, and how much."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mcagent.model.errors import McagentError


class NoConsentError(McagentError):
    """The user has not agreed, so nothing was changed."""


def add_yes_flag(parser: argparse.ArgumentParser) -> None:
    """Declare the flag that answers the question of `confirm`."""
    parser.add_argument("--yes", action="store_true", help="do not ask, whatever is lost")


def confirm(losses: Sequence[str], question: str, *, instead: str = "") -> None:
    """Ask for consent to `losses`, sentences; without any there is no question. Raises NoConsentError.

    `instead`: the better way, if there is one. Input that is no terminal is a refusal.
    """
    if not losses:
        return
    effect = " ".join(losses)
    if not sys.stdin.isatty():
        raise NoConsentError(f"{effect} {instead + ', or give' if instead else 'Give'} --yes")
    print(f"{effect} {question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NoConsentError("nothing is deleted")
