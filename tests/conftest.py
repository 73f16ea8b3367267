"""Shared by all tests: which kinds of test can run on this machine."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out, by name and reason, the tests that need root where there is none."""
    if os.geteuid() == 0:
        return
    for item in items:
        if "contract" in item.keywords or "lab" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs root: it makes network namespaces"))
