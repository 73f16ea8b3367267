"""What the tests share: Antrea's programs, unpacked once, and leaving out loudly what is not there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.realapi import find
from devtools.realapi.binaries import HINT
from tests.antrea import programs
from tests.antrea.worlds import World, running


def _missing() -> str:
    """Return what keeps the tests from running, "" if nothing."""
    if os.geteuid() != 0:
        return "Antrea's controllers need root here: each has a /run of its own"
    binaries = find()
    if binaries is None or binaries.kube_controller_manager is None:
        return f"no kube-apiserver, etcd and kube-controller-manager on this machine: {HINT}"
    lacking = [version for version in programs.VERSIONS if programs.packed(version) is None]
    if lacking:
        return f"no multicluster-controller {', '.join(lacking)} of Antrea in this place: {programs.HINT}"
    return ""


def pytest_runtest_setup() -> None:
    """Leave a test out where something that it needs is not there, before anything is started."""
    if reason := _missing():
        pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say loudly what did not run, also of several processes."""
    skipped = terminalreporter.stats.get("skipped", ())
    for reason, count in Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped).items():
        terminalreporter.write_sep("*", f"NOT RUN: {count} tests", red=True)
        terminalreporter.write_line(f"*** {reason}", red=True)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give what has a version's program, unpacked."""
    directory = tmp_path_factory.mktemp("antrea")
    return {version: programs.unpack(version, directory) for version in programs.VERSIONS}.__getitem__


@pytest.fixture(scope="class")
def world(
    request: pytest.FixtureRequest, program: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Give a ClusterSet with all members in it, as the class has it (`suite.Suite`)."""
    of = request.cls
    with running(of.LEADER, of.MEMBERS, tmp_path_factory.mktemp("world"), program) as controllers:
        controllers.lead()
        controllers.join(controllers.members)
        yield controllers
