"""What is made from the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcagent.agent.config import load
from mcagent.agent.dry_run import dry_run
from mcagent.agent.wiring import make_facilities, selectors
from mcagent.model.errors import SourceError
from mcagent.model.objects import Kind


def test_only_a_gateway_reads_the_pods_of_all_nodes() -> None:
    """A worker that needs Pods asks for its own; a gateway for all."""
    worker = frozenset({Kind.NODE, Kind.POD})
    assert selectors(worker, "n1") == {Kind.POD: "spec.nodeName=n1"}
    assert selectors(worker | {Kind.SERVICE}, "n1") == {}
    assert selectors(frozenset({Kind.NODE}), "n1") == {}


def test_the_bridges_socket_is_beside_the_databases() -> None:
    """Both daemons of one Open vSwitch use one run directory."""
    flags = {"nodeName": "n1", "ovsdb": "unix:/run/ovs-x/db.sock", "bridge": "br-y"}
    facilities = make_facilities(load(None, {}, flags))
    assert facilities.openflow.socket == "unix:/run/ovs-x/br-y.mgmt"
    facilities.close()


def test_a_dry_run_without_objects_says_what_is_missing(tmp_path: Path) -> None:
    """A directory that is not there is named within the time given."""
    settings = load(None, {}, {"nodeName": "n1", "source": f"dir:{tmp_path}/none"})
    with pytest.raises(SourceError, match=r"not listed within 0\.5 s: ClusterInfoImport: .*none"):
        dry_run(settings, offline=True, timeout=0.5)
