"""Flags with one meaning in all commands that have them: each is declared once, here or in `cluster_flags`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

MOST_SECONDS = 7 * 86400


def add_output_flag(
    parser: argparse.ArgumentParser, choices: Sequence[str] = ("text", "json"), more: str = ""
) -> None:
    """Declare the form of the output, by default the first of `choices`; `more`: what there is to say of them."""
    parser.add_argument(
        "-o", "--output", choices=choices, default=choices[0], help=f"form of the output{more} [%(default)s]"
    )


def add_all_flag(parser: argparse.ArgumentParser) -> None:
    """Declare that a command is about the whole cluster, also on a Node."""
    parser.add_argument("-A", "--all", action="store_true", help="all Nodes of the cluster [on a Node: this one]")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_SECONDS:  # nor NaN, which no comparison ends
        raise argparse.ArgumentTypeError(f'must be seconds from 0 to {MOST_SECONDS}, is "{text[:40]}"')
    return seconds


def add_seconds_flag(parser: argparse.ArgumentParser, name: str, default: float, meaning: str) -> None:
    """Declare a time in seconds, as `--timeout`."""
    parser.add_argument(name, type=_seconds, default=default, metavar="SECONDS", help=f"{meaning} [%(default)g]")


def add_list_flag(parser: argparse.ArgumentParser, name: str, metavar: str, meaning: str) -> None:
    """Declare a flag that may be repeated; its value is a list."""
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=meaning)


def add_namespace_flag(parser: argparse.ArgumentParser, meaning: str, default: str | None = "") -> None:
    """Declare a namespace; without a default (None) the flag is required."""
    shown = f"{meaning} [%(default)s]" if default else meaning
    parser.add_argument("-n", "--namespace", required=default is None, default=default, metavar="NAME", help=shown)
