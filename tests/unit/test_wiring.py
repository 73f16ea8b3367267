"""What is made from the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcagent.agent.backends import make_backends, route_tables
from mcagent.agent.config import load
from mcagent.agent.dry_run import dry_run
from mcagent.core.compile import compile_desired
from mcagent.model.config import PodRouting
from mcagent.model.dataplane.facts import DatapathType, Facts
from mcagent.model.errors import SourceError
from mcagent.model.node_state import NodeRole
from mcagent.model.objects import Kind
from tests.worlds.core_inputs import config, gateway, node, snapshot


def test_a_userspace_worker_reads_services_and_the_pods_of_its_own_node() -> None:
    """It needs the kinds that a gateway does, but is none."""
    compiled = compile_desired(
        snapshot(node("g1", "172.18.0.1"), node("w1", "172.18.0.2"), gateway("g1", "172.18.0.1", "172.18.0.1")),
        Facts(datapath=DatapathType.NETDEV),
        config("w1", pod_routing=PodRouting.PER_POD),
    )
    assert {Kind.POD, Kind.SERVICE} <= compiled.needs
    assert compiled.desired.state.role is NodeRole.WORKER
    assert not compiled.desired.state.all_pods


def test_the_bridges_socket_is_beside_the_databases() -> None:
    """Both daemons of one Open vSwitch use one run directory."""
    flags = {"nodeName": "n1", "ovsdb": "unix:/run/ovs-x/db.sock", "bridge": "br-y"}
    facilities = make_backends(load(None, {}, flags))
    assert facilities.openflow.socket == "unix:/run/ovs-x/br-y.mgmt"
    facilities.close()


def test_tables_of_further_devices_are_read_once() -> None:
    """One of them has the number of an earlier agent's table, whose routes are removed."""
    tables = route_tables(config("n1", route_table=28003))
    assert sorted(tables) == [28003, 28004, 28005, 28006]
    assert sorted(route_tables(config("n1", route_table=100))) == [100, 101, 102, 103, 28004]


def test_a_dry_run_without_objects_says_what_is_missing(tmp_path: Path) -> None:
    """A directory that is not there is named within the time given."""
    settings = load(None, {}, {"nodeName": "n1", "source": f"dir:{tmp_path}/none"})
    with pytest.raises(SourceError, match=r"not listed within 0\.5 s: ClusterInfoImport: .*none"):
        dry_run(settings, offline=True, timeout=0.5)
