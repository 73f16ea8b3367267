"""What a failed test leaves of the lab that it made for itself, and that has ended before pytest reports it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pytest

from devtools.lab.lab import Lab
from devtools.lab.topology import generate
from tests.worlds.labs import FAILURES


class _TestError(Exception):
    """What ends the lab."""


def test_a_lab_that_ends_with_an_error_leaves_evidence(make_lab: Callable[..., Lab]) -> None:
    """Flows, logs and statuses of every Node are in a folder with the name of the lab, which is gone."""
    lab = make_lab(generate(clusters=1, workers=0), agents=False)
    cluster = lab.topology.clusters[0]
    with pytest.raises(_TestError), lab:
        raise _TestError
    assert not lab.state.exists
    (folder,) = FAILURES.glob(f"*-{lab.name}")
    assert json.loads((folder / "lab.json").read_text())
    assert "br-phy" in (folder / cluster.name / cluster.gateways[0].name / "vsctl.txt").read_text()
    shutil.rmtree(folder)
