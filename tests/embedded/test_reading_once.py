"""Objects listed once, for commands: all kinds that a Node's desired state needs, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer, Fault, FaultKind
from mcagent.kube.client import Client
from mcagent.kube.sources.lister import Lister
from mcagent.kube.sources.once import read_once, relist
from mcagent.model.dataplane.facts import Facts
from mcagent.model.errors import SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind, Snapshot
from tests.embedded.controlworld import Objects, client_of
from tests.worlds.core_inputs import config

MC = "mc"  # the namespace of the configuration of core_inputs


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """Give a running server with this cluster and another one."""
    with ApiServer() as server:
        objects = Objects(server)
        objects.put(Kind.NAMESPACE, MC)
        for number, name in enumerate(("g1", "w1"), 1):
            address: Any = {"addresses": [{"type": "InternalIP", "address": f"192.0.2.{number}"}]}
            objects.put(Kind.NODE, name, spec={"podCIDRs": [f"10.10.{number}.0/24"]}, status=address)
            objects.put_status(Kind.NODE, name, address)
        objects.put(
            Kind.GATEWAY, "g1", MC, gatewayIP="192.0.2.1", internalIP="192.0.2.1", serviceCIDR="10.96.0.0/16"
        )
        east: dict[str, Any] = {"clusterID": "east", "serviceCIDR": "10.97.0.0/16"}
        east["gatewayInfos"] = [{"gatewayIP": "203.0.113.1"}]
        for namespace in (MC, "default"):
            objects.put(Kind.CLUSTER_INFO_IMPORT, "east-clusterinfo", namespace, spec=east)
        yield server


@pytest.fixture
def client(api: ApiServer, tmp_path: Path) -> Client:
    """Give a client of the server."""
    return client_of(api, tmp_path)


def test_a_gateway_needs_more_kinds_than_a_worker(client: Client) -> None:
    """Each gets the objects of this cluster, and other clusters of the configured namespace."""
    gateway, worker = (read_once(client, config(name, namespace=MC), Facts(), Snapshot()) for name in ("g1", "w1"))
    for snapshot in (gateway, worker):
        assert set(snapshot.nodes) == {"g1", "w1"}
        assert set(snapshot.gateways) == {f"{MC}/g1"}
        assert set(snapshot.cluster_infos) == {f"{MC}/east-clusterinfo"}
    assert Kind.SERVICE_EXPORT in gateway.synced
    assert Kind.SERVICE_EXPORT not in worker.synced


def test_kinds_that_are_there_are_not_listed_again(api: ApiServer, client: Client) -> None:
    """A snapshot is completed, also one that a command has read from files."""
    snapshot = read_once(client, config("g1", namespace=MC), Facts(), Snapshot())
    api.requests.clear()
    assert read_once(client, config("g1", namespace=MC), Facts(), snapshot) is snapshot
    assert list(api.requests) == []


def test_a_missing_optional_kind_has_no_objects_and_others_are_errors(api: ApiServer, client: Client) -> None:
    """Policies of Antrea may be unknown to the API server; the error about another kind names its path."""
    assert relist(client, Kind.ANTREA_NETWORK_POLICY, MC).items == []  # this server has no such definition
    imports, gateways = object_path(Kind.SERVICE_IMPORT, ""), object_path(Kind.GATEWAY, MC)
    for code in (403, 404):
        for path in (imports, gateways):
            api.faults.add(Fault(kind=FaultKind.STATUS, verbs=("list",), path=path, code=code, times=1))
        assert relist(client, Kind.SERVICE_IMPORT, MC).items == []
        with pytest.raises(SourceError, match=gateways):
            read_once(client, config("g1", namespace=MC), Facts(), Snapshot())


@pytest.mark.parametrize(
    ("body", "reason"), [("{", "the answer is not JSON"), ("{}", "the answer is no GatewayList")]
)
def test_an_answer_that_is_no_list_names_server_and_path(
    body: str, reason: str, api: ApiServer, client: Client
) -> None:
    """Garbage of a proxy is no empty list."""
    path = object_path(Kind.GATEWAY, MC)
    api.faults.add(Fault(kind=FaultKind.GARBAGE, verbs=("list",), path=path, body=body, times=1))
    with pytest.raises(SourceError) as caught:
        Lister(client, Kind.GATEWAY, path).read()
    assert str(caught.value) == f"{client.server}: GET {path}: {reason}"
