"""Shared by all tests: which kinds of test can run on this machine, how long property tests search."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Property tests are the same on every run unless HYPOTHESIS_PROFILE=thorough asks for a longer search.
settings.register_profile("quick", derandomize=True, deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out, by name and reason, the tests that need root where there is none."""
    if os.geteuid() == 0:
        return
    for item in items:
        if "contract" in item.keywords or "lab" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs root: it makes network namespaces"))
