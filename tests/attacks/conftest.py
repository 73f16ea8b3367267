"""Attacks have the labs and API servers of `tests/worlds`, and each says what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.apiservers import (
    _servers,
    cluster,
    pytest_configure,
    pytest_generate_tests,
    pytest_terminal_summary,
    server,
)
from tests.worlds.labs import make_lab, pytest_runtest_makereport, settled

__all__ = [
    "_servers",
    "cluster",
    "make_lab",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_runtest_makereport",
    "pytest_terminal_summary",
    "server",
    "settled",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a lab."""
    directory = Path(__file__).parent
    for item in items:
        if directory in item.path.parents and "make_lab" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.lab)
