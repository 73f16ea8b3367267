"""Fixtures of the contract tests: namespaces and Open vSwitch instances of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from tests.contract.inside import new_name


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """Give one network namespace for the tests of a module."""
    name = new_name()
    netns.create(name)
    try:
        yield name
    finally:
        netns.delete(name)


@pytest.fixture
def fresh_namespace() -> Iterator[str]:
    """Give one network namespace for just this test."""
    name = new_name()
    netns.create(name)
    try:
        yield name
    finally:
        netns.delete(name)


def _instance(name: str) -> Iterator[OvsInstance]:
    with tempfile.TemporaryDirectory(
        prefix=f"mct.{os.getpid()}."
    ) as directory:  # pytest's own paths are too long for sockets
        ovs = OvsInstance.start(name, Path(directory))
        try:
            yield ovs
        finally:
            ovs.stop()


@pytest.fixture(scope="module")
def ovs(namespace: str) -> Iterator[OvsInstance]:
    """Give one Open vSwitch, in `namespace`, for the tests of a module."""
    yield from _instance(namespace)


@pytest.fixture
def fresh_ovs(fresh_namespace: str) -> Iterator[OvsInstance]:
    """Give one Open vSwitch for just this test: it may be broken, stopped and started."""
    yield from _instance(fresh_namespace)
