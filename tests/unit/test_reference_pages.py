"""The reference pages of commands and custom resources: made from the program, complete, and not forgotten."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools import cli_page, crd_page
from mcagent.cli.main import COMMANDS, command_of, parser_of

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize(("name", "page"), [("cli.md", cli_page.page), ("crds.md", crd_page.page)])
def test_the_page_is_up_to_date(name: str, page: object) -> None:
    """`make docs` writes it; nobody forgets to."""
    assert callable(page)
    assert (REFERENCE / name).read_text(encoding="utf-8") == page()


def parsers() -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of all commands and their subcommands."""
    waiting = [parser_of(command_of(name), f"mcagent {name}") for name in COMMANDS]
    while waiting:
        parser = waiting.pop()
        yield parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += dict.fromkeys(action.choices.values())


def test_every_command_and_flag_says_what_it_is_for() -> None:
    """A flag without a meaning helps nobody; and every one is on the page."""
    page = cli_page.page()
    for parser in parsers():
        assert f"# {parser.prog}\n" in page
        for action in parser._actions:
            if not isinstance(action, argparse._SubParsersAction):
                assert action.help, f"{parser.prog} {action.dest}"


def test_every_kind_and_field_is_on_the_page() -> None:
    """Fields inside of lists and objects, with what must be there, bounds and versions."""
    page = crd_page.page()
    for kind in ("Gateway", "ClusterInfoImport", "ClusterSet", "ServiceExport", "ServiceImport", "ResourceExport"):
        assert f"\n## {kind}\n" in page
    assert "| `gatewayIP` | string | Tunnel address used by gateways of other clusters. |" in page
    assert "| `wireGuard.port` | integer | UDP port; the peer's own where it is left out.; at least 1 |" in page
