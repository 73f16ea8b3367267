"""`mcagent trace` where no agent runs: everything follows from the objects of two clusters' API servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.apiserver import ApiServer, Fault, FaultKind
from devtools.lab import objects
from devtools.lab.topology import SERVICE_PORT, Cluster, generate
from mcagent.cli.main import main
from mcagent.kube.client import Client
from mcagent.model.kinds import kind_of, object_path
from mcagent.model.objects import Kind
from tests.worlds.crds import create_crds

AGENT = {"app.kubernetes.io/name": "mcagent", "app.kubernetes.io/component": "agent"}
TOPOLOGY = generate(name="objects", clusters=2, gateways=2, workers=1, pods=1)
HERE, FAR = TOPOLOGY.clusters


def put(client: Client, raw: Any) -> None:
    """Create an object, a Pod with its status."""
    kind, meta = kind_of(raw) or Kind(raw["kind"]), raw["metadata"]
    path = object_path(kind, meta.get("namespace", ""))
    client.request("POST", path, body=raw)
    if kind is Kind.POD:
        change = {"status": raw["status"]}
        where = f"{path}/{meta['name']}/status"
        client.request("PATCH", where, body=change, content_type="application/merge-patch+json")


def agents_of(cluster: Cluster) -> str:
    """Return the configuration of a cluster's agents."""
    places = {"kubeconfig": "", "run_directory": "/run/x", "key_directory": "/var/x"}
    return yaml.safe_dump(objects.agent_config(TOPOLOGY, cluster, cluster.nodes[0], ovsdb="unix:/run/x", **places))


def fill(client: Client, cluster: Cluster, config: str) -> None:
    """Give an API server what it holds of a cluster; with a configuration of its agents, too."""
    create_crds(client)
    for raw in objects.of_cluster(TOPOLOGY, cluster):
        put(client, raw)
    if config:
        meta = {"name": "mcagent-agent", "namespace": objects.NAMESPACE, "labels": AGENT}
        put(client, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"agent.yaml": config}})


@pytest.fixture(scope="module")
def kubeconfigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Give kubeconfigs, and the second cluster's agent configuration; the first has its own in a ConfigMap.

    The kubeconfigs are of both clusters and of an API server that refuses to list multicluster objects ("few").
    """
    directory = tmp_path_factory.mktemp("clusters")
    found = {name: directory / name for name in (HERE.name, FAR.name, "few", "config")}
    with ExitStack() as stack:
        for cluster, config in ((HERE, agents_of(HERE)), (FAR, "")):
            server = stack.enter_context(ApiServer())
            server.write_kubeconfig(found[cluster.name])
            client = Client(str(found[cluster.name]))
            stack.callback(client.close)
            fill(client, cluster, config)
        found["config"].write_text(agents_of(FAR))
        forbidding = stack.enter_context(ApiServer())
        forbidding.write_kubeconfig(found["few"])
        forbidding.faults.add(Fault(kind=FaultKind.STATUS, code=403, path="/multicluster"))
        yield found


def trace(capsys: pytest.CaptureFixture[str], kubeconfigs: dict[str, Path], *arguments: object) -> tuple[int, Any]:
    """Trace from a worker's Pod of the first cluster to the Service of the second; return exit code and values."""
    service = next(one for one in FAR.services if one.exported)
    argv = [
        "trace",
        "--from",
        f"default/{HERE.nodes[-1].pods[0].name}",
        "--kubeconfig",
        str(kubeconfigs[HERE.name]),
    ]
    code = main([*argv, "--to", f"{service.cluster_ip}:{SERVICE_PORT}", "-o", "json", *map(str, arguments)])
    return code, json.loads(capsys.readouterr().out)


def test_objects_are_enough_for_the_whole_way(
    kubeconfigs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """From the Pod's Node to that of the Service's endpoint and back, with what is assumed in each cluster."""
    arguments = ("--remote-kubeconfig", kubeconfigs[FAR.name])
    code, report = trace(capsys, kubeconfigs, *arguments, "--remote-config", kubeconfigs["config"])
    hops = [*report["hops"], *report["answer"]]
    assert (code, report["delivered"], report["answered"]) == (0, True, True), [hop["text"] for hop in hops]
    assert {hop["from"] for hop in hops} == {"simulator"}
    assert report["hops"][0]["node"] == HERE.nodes[-1].name
    assert [hop["cluster"] for hop in report["hops"]][:3] == [HERE.name, HERE.name, FAR.name]
    for hop in hops:
        source = f"ConfigMap {objects.NAMESPACE}/mcagent-agent" if hop["cluster"] == HERE.name else "/config;"
        assert "no running Pod of an agent" in hop["why"]
        assert source in hop["why"]
    _, report = trace(capsys, kubeconfigs, *arguments)
    assert "Assumed: the default configuration" in report["hops"][2]["why"]


def test_probes_that_cannot_be_sent_have_a_reason(
    kubeconfigs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent of the first Node sends them. Without one the exit code is 1, whatever the trace shows."""
    service = next(service for service in FAR.services if service.exported)
    remote = ["--remote-kubeconfig", str(kubeconfigs[FAR.name]), "--remote-config", str(kubeconfigs["config"])]
    source = ["--from", f"default/{HERE.nodes[-1].pods[0].name}", "--kubeconfig", str(kubeconfigs[HERE.name])]
    target = ["--to", f"{service.cluster_ip}:{SERVICE_PORT}"]
    assert main(["trace", *source, *target, *remote, "--live"]) == 1
    text = capsys.readouterr()
    assert "verdict: delivered" in text.out
    assert "mcagent trace: no probe is sent: there is no running Pod of an agent" in text.err


def test_a_tunnel_that_a_gateway_reports_as_down_is_not_used(
    kubeconfigs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The status of its Gateway object is all that is known of the tunnels of a Node without an agent."""
    remote = ("--remote-kubeconfig", kubeconfigs[FAR.name], "--remote-config", kubeconfigs["config"])
    _, report = trace(capsys, kubeconfigs, *remote)
    worker, gateway, *_ = (hop["node"] for hop in report["hops"])
    client = Client(str(kubeconfigs[HERE.name]))
    path = f"{object_path(Kind.GATEWAY, objects.NAMESPACE)}/{gateway}/status"
    down = {"clusterID": FAR.name, "live": 0, "tunnels": 2, "why": "BFD is down"}
    try:
        for links, next_cluster in (([down], HERE.name), ([], FAR.name)):
            body = {"status": {"links": links}}
            client.request("PATCH", path, body=body, content_type="application/merge-patch+json")
            _, report = trace(capsys, kubeconfigs, *remote)
            assert [hop["node"] for hop in report["hops"][:2]] == [worker, gateway]
            assert report["hops"][2]["cluster"] == next_cluster
    finally:
        client.close()


def test_a_cluster_that_cannot_be_read_ends_the_way(
    kubeconfigs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a kubeconfig the flag that helps is named, without rights what is refused, else whose it is."""
    code, report = trace(capsys, kubeconfigs)
    last = report["hops"][-1]
    assert (code, last["from"], last["cluster"]) == (1, None, FAR.name)
    assert "--remote-context" in last["why"]
    code, report = trace(capsys, kubeconfigs, "--remote-kubeconfig", kubeconfigs["few"])
    last = report["hops"][-1]
    assert (code, last["from"], last["cluster"]) == (1, None, FAR.name)
    assert "nor can it be simulated: " in last["why"]
    assert "not allowed: the role lacks a rule for it" in last["why"]
    _, report = trace(capsys, kubeconfigs, "--remote-kubeconfig", kubeconfigs[HERE.name])
    assert f"leads to cluster {HERE.name}, not to {FAR.name}" in report["hops"][-1]["why"]
