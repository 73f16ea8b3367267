"""Quarantine is small, and each entry names a test that exists (`tests/quarantine.py`)."""

from __future__ import annotations

import ast
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from tests import quarantine
from tests.quarantine import Entry

ROOT = Path(__file__).parents[2]


def test_quarantine_is_small() -> None:
    """At most ten tests are left out of `make test`, each once, since a day in the past."""
    entries = quarantine.entries()
    assert len(entries) <= quarantine.MOST
    assert len({entry.test for entry in entries}) == len(entries)
    assert all(entry.since <= datetime.now(UTC).date() for entry in entries)


def test_tests_in_quarantine_exist() -> None:
    """The file of each defines a test function of that name."""
    for entry in quarantine.entries():
        file, _, name = entry.test.partition("::")
        functions = ast.walk(ast.parse((ROOT / file).read_text()))
        names = {function.name for function in functions if isinstance(function, ast.FunctionDef)}
        assert name.rpartition("::")[2].partition("[")[0] in names, entry.test


def test_a_line_has_a_test_a_date_and_an_observation() -> None:
    """Comments and empty lines are no entries; a line without a date is an error."""
    text = "# comment\n\ntests/lab/test_x.py::test_y[a] 2026-11-28 one ping in ten is lost\n"
    assert quarantine.entries(text) == (
        Entry("tests/lab/test_x.py::test_y[a]", date(2026, 11, 28), "one ping in ten is lost"),
    )
    with pytest.raises(ValueError, match="Invalid isoformat string"):
        quarantine.entries("tests/lab/test_x.py::test_y one ping in ten")
