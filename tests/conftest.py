"""Shared by all tests: which can run on this machine, on which datapath, and what happens when one fails."""

from __future__ import annotations

import gc
import os

import pytest

from devtools.processes import mark_children
from mcagent.model.dataplane.facts import DatapathType
from tests import failures, properties, unchanged

__all__ = ["properties"]  # imported for the hypothesis profile

# Python collects garbage after 700 new objects, which takes a seventh of the unit tests' time. What tests leave in
# cycles is small.
gc.set_threshold(50_000, 20, 50)


def pytest_configure(config: pytest.Config) -> None:
    """Record what fails, to be repeated, and leave out tests of unchanged API servers; mark what tests start."""
    mark_children()
    failures.register(config)
    unchanged.register(config)


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


def pytest_collection_finish() -> None:
    """Leave modules and tests out of later collections of garbage: they stay until the end."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out, by name and reason, the tests that need root where there is none."""
    if os.geteuid() == 0:
        return
    for item in items:
        if "contract" in item.keywords or "lab" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs root: it makes network namespaces"))
