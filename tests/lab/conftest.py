"""Every test here needs a lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.labs import make_lab, pytest_runtest_makereport, settled

__all__ = ["make_lab", "pytest_runtest_makereport", "settled"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.lab)
