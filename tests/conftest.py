"""Shared by all tests: which can run on this machine, on which datapath, and how long properties are searched."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from mcagent.model.facts import DatapathType

# Property tests are the same on every run unless HYPOTHESIS_PROFILE=thorough asks for a longer search.
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of the datapath: the same tests run on both (`make test-kernel` is the kernel's)."""
    parser.addoption(
        "--datapath",
        choices=[str(kind) for kind in DatapathType],
        default=str(DatapathType.NETDEV),
        help="datapath of Open vSwitch: netdev (userspace, anywhere) or system (the kernel's module) [netdev]",
    )


@pytest.fixture(scope="session")
def datapath(request: pytest.FixtureRequest) -> DatapathType:
    """Tell which datapath this run of the tests is about."""
    return DatapathType(request.config.getoption("--datapath"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out, by name and reason, the tests that need root where there is none."""
    if os.geteuid() == 0:
        return
    for item in items:
        if "contract" in item.keywords or "lab" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs root: it makes network namespaces"))
