"""Fixtures of the tests of packets: labs, and what is kept of one when its test fails. A conftest imports them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from devtools.lab.api import ApiKind
from devtools.lab.faults import Settled
from devtools.lab.lab import Lab
from devtools.lab.topology import Topology
from devtools.traffic import evidence
from mcagent.model.config import DatapathChoice
from mcagent.model.dataplane.facts import DatapathType
from tests import alarm

OWN_NAMES = f"t{os.getpid()}-"
"""How the name of every lab of this test process begins, and of no other's."""
_NUMBERS = count(1)
_LABS: list[Lab] = []
_ENDED: list[Path] = []
"""Folders with evidence of labs that ended within the test that runs."""
FAILURES = Path(os.environ.get("MCAGENT_LAB_FAILURES") or Path(tempfile.gettempdir()) / "mcagent-lab-failures")

MakeLab = Callable[..., Lab]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep logs, flows, statuses and packets of every lab that runs when a test fails, and say where."""
    report = yield
    if report.failed and report.when in ("setup", "call"):
        name = item.name.replace("/", "_").replace("[", "-").replace("]", "")
        for folder in _ENDED:
            report.sections.append(("lab", f"logs, flows, statuses and packets are in {folder}"))
        with alarm.time_limit(alarm.EVIDENCE_SECONDS):
            for lab in (lab for lab in _LABS if lab.state.exists):
                folder = FAILURES / f"{time.strftime('%H%M%S')}-{name}-{lab.name}"
                report.sections.append(("lab", f"logs, flows, statuses and packets are in {folder}"))
                evidence.collect(lab, folder)
    if report.when == "teardown":
        _ENDED.clear()
    return report


class _OwnLab(Lab):
    """A lab that a failing test has made for itself leaves evidence, too: it is gone before the report."""

    def __exit__(self, *exc: object) -> None:
        if isinstance(exc[1], (Exception, pytest.fail.Exception)):  # not a skip
            folder = FAILURES / f"{time.strftime('%H%M%S')}-{self.name}"
            with alarm.time_limit(alarm.EVIDENCE_SECONDS):
                _ENDED.append(evidence.collect(self, folder))
        super().__exit__(*exc)


@pytest.fixture(scope="module")
def settled(lab: Lab) -> Settled:
    """How the module's own `lab` is when all is well."""
    return Settled(lab)


def fresh_name() -> str:
    """Return a name for a lab that no other test run on this machine uses."""
    return f"{OWN_NAMES}{next(_NUMBERS)}"


@pytest.fixture(scope="module")
def make_lab(datapath: DatapathType) -> Iterator[Callable[..., Lab]]:
    """Make labs for a module (`make_lab(topology, agents=True, api=…, …)`); down after it, if not before.

    With `liveness=False` BFD declares nothing dead for 2.7 s, so that what a busy machine delays does not look
    like a fault: for tests that lose no gateway.
    """

    def make(
        topology: Topology,
        *,
        agents: bool = True,
        api: ApiKind = ApiKind.EMBEDDED,
        control_plane: bool = False,
        liveness: bool = True,
    ) -> Lab:
        choice = DatapathChoice(datapath.value)
        shape = replace(topology, name=fresh_name(), datapath=choice)
        if not liveness:
            # Below the 1 s of sessions that are not up yet (RFC 5880, 6.8.3), by which `Settled` tells these.
            slow = {"bfd": {where: {"interval": "900ms"} for where in ("local", "remote")}}
            clusters = (replace(cluster, config={**cluster.config, **slow}) for cluster in shape.clusters)
            shape = replace(shape, clusters=tuple(clusters))
        lab = _OwnLab.up(shape, agents=agents, api=api, control_plane=control_plane)
        _LABS.append(lab)
        evidence.record(lab)
        return lab

    before = len(_LABS)
    try:
        yield make
    finally:
        while len(_LABS) > before:
            _LABS.pop().down()
