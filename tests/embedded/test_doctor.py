"""`mcagent doctor` against an API server: what it says of a cluster, and a bundle that holds no secret."""

from __future__ import annotations

import base64
import json
import stat
import tarfile
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network
from pathlib import Path

import pytest
import yaml

from devtools.apiserver import ApiServer
from devtools.apiserver.faults import Fault, FaultKind
from devtools.lab import certificates
from mcagent.cli.common.bundle import PART, packed
from mcagent.cli.main import main
from mcagent.dataplane.wireguard.keys import KeyStore
from mcagent.doctor.checks.cluster import webhooks
from mcagent.doctor.examined import ExaminedCluster
from mcagent.kube.client import Client
from mcagent.kube.source import RawObject
from mcagent.model.config import Config
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from tests.worlds.crds import create_crds

HOME = "kube-system"
MARK = "MARKEDSECRET"
JWT = f"eyJhbGciOiJSUzI1NiJ9.{base64.urlsafe_b64encode(MARK.encode()).decode()}.c2lnbmF0dXJl"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
NODE_STATUS: RawObject = {"status": {"addresses": [{"type": "InternalIP", "address": "192.168.1.11"}]}}
PUBLIC = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Path]]:
    """Give an API server full of secrets, each marked; and an administrator's kubeconfig, whose token is one."""
    directory = tmp_path_factory.mktemp("doctor")
    identity = certificates.server_identity(directory / "pki", ["127.0.0.1"])
    cidr = IPv4Network("10.96.0.0/16")
    with ApiServer(tls=identity, service_cidr=cidr, tokens=frozenset({f"admin-{MARK}"})) as server:
        server.write_kubeconfig(directory / "kubeconfig")
        client = Client(str(directory / "kubeconfig"))
        create_crds(client)
        fill(client)
        yield client, directory / "kubeconfig"
        client.close()


def put(
    client: Client, kind: Kind, name: str, content: RawObject, *, labels: Mapping[str, str] | None = None
) -> None:
    """Create an object whose annotations, ours excepted, are marked."""
    annotations = {LAST_APPLIED: json.dumps({"token": MARK}), "example.com/note": MARK}
    annotations["mcagent.io/note"] = f"Bearer {JWT}"
    meta: RawObject = {
        "name": name,
        "annotations": annotations,
        "labels": {"example.com/owner": MARK, **(labels or {})},
    }
    if KINDS[kind].namespaced:
        meta["namespace"] = HOME
    body = {"apiVersion": KINDS[kind].api_version, "kind": KINDS[kind].name} | content | {"metadata": meta}
    client.request("POST", object_path(kind, HOME if KINDS[kind].namespaced else ""), body=body)


def fill(client: Client) -> None:
    """Put secrets wherever people and programs put them."""
    spec: RawObject
    for name in ("member-east-token", "leader-access-token", "mcagent-member-webhook"):
        put(client, Kind.SECRET, name, {"stringData": {"token": JWT, "tls.key": MARK, "ca.crt": MARK}})
    put(client, Kind.CONFIG_MAP, "settings", {"data": {"password": MARK}})
    config = {"enablePodToPodConnectivity": True, "podCIDRs": ["10.1.0.0/16"], "clusterID": "east"}
    labels = {"app.kubernetes.io/name": "mcagent", "app.kubernetes.io/component": "agent"}
    put(client, Kind.CONFIG_MAP, "mcagent-agent", {"data": {"agent.yaml": yaml.safe_dump(config)}}, labels=labels)
    put(client, Kind.SERVICE_ACCOUNT, "mcagent-agent", {"secrets": [{"name": MARK}]})
    put(client, Kind.NODE, "n1", {"spec": {"podCIDR": "10.1.0.0/24", "providerID": MARK}} | NODE_STATUS)
    spec = {"clusterID": "east", "leaders": [{"clusterID": "l", "server": "https://127.0.0.1:1", "secret": MARK}]}
    put(client, Kind.CLUSTER_SET, "blue", {"spec": spec})
    gateway = {"gatewayIP": "192.168.1.11", "internalIP": "192.168.1.11", "serviceCIDR": "10.96.0.0/16"}
    put(client, Kind.GATEWAY, "n1", gateway | {"wireGuard": {"publicKey": PUBLIC}})
    spec = {"clusterID": "west", "serviceCIDR": "10.97.0.0/16", "podCIDRs": ["10.1.0.0/16"]}
    spec["gatewayInfos"] = [{"gatewayIP": "192.168.2.11"}]
    put(client, Kind.CLUSTER_INFO_IMPORT, "west-clusterinfo", {"spec": spec})
    put(client, Kind.SERVICE_EXPORT, "web", {})
    raw = base64.b64encode(MARK.encode() * 40).decode()
    spec = {"clusterID": "east", "kind": "Secret", "name": "s", "namespace": HOME, "raw": {"data": raw}}
    put(client, Kind.RESOURCE_EXPORT, "east-secret", {"spec": spec})


def contents(file: Path) -> dict[str, str]:
    """Return the files of a bundle."""
    with tarfile.open(file) as archive:
        names = [member for member in archive.getmembers() if member.isfile()]
        contents = {member.name.removeprefix("mcagent-doctor/"): archive.extractfile(member) for member in names}
        return {name: part.read().decode() for name, part in contents.items() if part is not None}


def secrets(private: bytes) -> list[str]:
    """Return every form in which a secret of this test could be in a text."""
    words = [MARK, base64.b64encode(MARK.encode()).decode().rstrip("="), JWT.split(".")[1], JWT.split(".")[2]]
    words += [base64.b64encode(MARK.encode() * 40).decode()[:60]]
    return [*words, base64.b64encode(private).decode(), private.hex()]


@pytest.mark.parametrize("mode", [(), ("--all",)], ids=["node", "cluster"])
def test_a_bundle_holds_no_secret(
    site: tuple[Client, Path], tmp_path: Path, mode: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing that was marked is in it, in any form; what a report needs is; the file is ours alone."""
    keys = KeyStore(tmp_path / "keys" / "mc-wg0.json").ensure()
    file = tmp_path / "report.tgz"
    config = tmp_path / "agent.yaml"
    keys_of_config = {
        "nodeName": "n1",
        "ovsdb": f"unix:{tmp_path}/db.sock",
        "runDirectory": str(tmp_path),
        "wireGuard": {"keyDirectory": str(tmp_path / "keys")},
    }
    config.write_text(json.dumps(keys_of_config), encoding="utf-8")
    flags = ["--config", str(config), "--kubeconfig", str(site[1])]
    code = main(["doctor", *mode, *flags, "--bundle", str(file), "-o", "json"])
    output = capsys.readouterr()
    assert code == 1, output.err  # there is no agent, and no Open vSwitch
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    files = contents(file)
    for secret in secrets(keys.current.private):
        assert [name for name, text in files.items() if secret in text] == []
    assert MARK not in output.out + output.err
    gateways = next(text for name, text in files.items() if name.endswith("objects/Gateway.json"))
    assert PUBLIC in gateways
    assert "192.168.1.11" in gateways
    assert json.loads(files["doctor.json"])["worst"] == "failed"
    if not mode:
        assert {"nft.txt", "network.txt", "openflow/dump-flows.txt", "ovsdb/Interface.json"} <= set(files)


def test_a_bundle_is_never_overwritten(
    site: tuple[Client, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is there stays as it is, and the command line is told to be wrong."""
    file = tmp_path / "report.tgz"
    file.write_text("mine")
    assert main(["doctor", "--all", "--kubeconfig", str(site[1]), "--bundle", str(file)]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_parts_of_a_bundle_are_scrubbed_and_bounded(tmp_path: Path) -> None:
    """A log loses tokens and keys, and is cut where it is too long."""
    key = base64.b64encode(bytes(32)).decode()
    file = tmp_path / "b.tgz"
    file.write_bytes(packed([("a.log", f"token {JWT} key {key}\n"), ("long.log", "x\n" * (PART // 2 + 1))]))
    files = contents(file)
    assert JWT not in files["a.log"]
    assert key not in files["a.log"]
    assert len(files["long.log"]) < PART + 100
    assert files["long.log"].endswith("[cut]\n")


def test_a_cluster_is_judged_without_its_agents(
    site: tuple[Client, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The API alone shows that nobody runs, and that another cluster has this one's Pod CIDR."""
    assert main(["doctor", "--all", "--kubeconfig", str(site[1]), "-o", "json"]) == 1
    (cluster,) = json.loads(capsys.readouterr().out)["clusters"]
    findings = {finding["reason"]: finding for finding in cluster["findings"]}
    assert {"NoAgents", "OverlapsLocal"} <= set(findings)
    assert "west-clusterinfo" in findings["OverlapsLocal"]["subject"]
    checks = {finding["check"]: finding["level"] for finding in cluster["findings"]}
    assert checks["crds"] == "ok"
    assert checks["neighbours"] == "ok"
    assert checks["leader"] == "skipped"  # nobody wrote its status, and nobody listens there


def test_a_cluster_that_does_not_answer_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One ✗ with the reason, and no trace of anything else."""
    site = tmp_path / "kubeconfig"
    with ApiServer(service_cidr=IPv4Network("10.96.0.0/16")) as server:
        server.write_kubeconfig(site)
    assert main(["doctor", "--all", "--kubeconfig", str(site)]) == 1
    out = capsys.readouterr().out
    assert "connection refused" in out
    assert "do:" in out


def test_a_doctor_without_rights_does_not_end_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The account of a pipeline that may read nothing: no ✗, but no success either; what was not read says so."""
    site = tmp_path / "kubeconfig"
    with ApiServer(service_cidr=IPv4Network("10.96.0.0/16")) as server:
        server.write_kubeconfig(site)
        server.faults.add(Fault(kind=FaultKind.STATUS, code=403))
        assert main(["doctor", "--all", "--kubeconfig", str(site), "-o", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["worst"] != "failed"
    (cluster,) = report["clusters"]
    levels = {finding["reason"]: finding["level"] for finding in cluster["findings"]}
    assert levels["NotRead"] == "skipped"


def test_a_check_of_a_cluster_that_does_not_answer_does_not_end_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`mcagent check --pre && helm install` ends at the check; --quiet shows what was not read."""
    site = tmp_path / "kubeconfig"
    with ApiServer(service_cidr=IPv4Network("10.96.0.0/16")) as server:
        server.write_kubeconfig(site)
    assert main(["check", "--pre", "--quiet", "--kubeconfig", str(site)]) == 1
    shown = capsys.readouterr().out
    assert "connection refused" in shown
    assert "all is well" not in shown


def test_a_workstation_is_not_checked_as_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is a kubeconfig and no agent, `check --pre` is about the cluster; --node means this machine."""
    for name in ("MCAGENT_CONFIG", "MCAGENT_NODE_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MCAGENT_RUN_DIRECTORY", str(tmp_path / "no-agent"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with ApiServer(service_cidr=IPv4Network("10.96.0.0/16")) as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        for flags, clusters, nodes in (([], 1, 0), (["--node"], 0, 1)):
            main(["check", "--pre", "-o", "json", *flags])
            report = json.loads(capsys.readouterr().out)
            assert (len(report["clusters"]), len(report["nodes"])) == (clusters, nodes)


def test_clusters_are_checked_before_the_installation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two contexts with one Service CIDR: each report names the other; nothing is created."""
    with (
        ApiServer(service_cidr=IPv4Network("10.96.0.0/16")) as east,
        ApiServer(service_cidr=IPv4Network("10.96.128.0/17")) as west,
    ):
        configs = []
        for name, server in (("east", east), ("west", west)):
            file = tmp_path / name
            server.write_kubeconfig(file)
            config = yaml.safe_load(file.read_text())
            for part, key in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
                for item in config[part]:
                    item["name"] = name
                    item[key] |= {"cluster": name, "user": name} if part == "contexts" else {}
            configs.append(config | {"current-context": name})
            client = Client(str(file))
            spec: RawObject = {"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}
            client.request("POST", "/api/v1/nodes", body={"metadata": {"name": "n1"}, **spec})
            client.close()
        merged = configs[0] | {
            part: configs[0][part] + configs[1][part] for part in ("clusters", "users", "contexts")
        }
        (tmp_path / "both").write_text(yaml.safe_dump(merged))
        arguments = ["--kubeconfig", str(tmp_path / "both"), "--context", "east", "--context", "west"]
        assert main(["check", "--pre", "-o", "json", *arguments]) == 0  # identical CIDRs are no fault
    report = json.loads(capsys.readouterr().out)
    for cluster, other in zip(report["clusters"], ("west", "east"), strict=True):
        overlaps = [finding["seen"] for finding in cluster["findings"] if finding["check"] == "pre-cidrs"]
        assert any(text.endswith(f"of context {other}") and text.startswith("10.96.") for text in overlaps), (
            overlaps
        )
        assert "10.1.0.0/24 overlaps 10.1.0.0/24 of context " + other in overlaps


def test_a_webhook_whose_service_is_a_name_is_not_away(site: tuple[Client, Path]) -> None:
    """A Service of type ExternalName has no EndpointSlices; one of another type without them is away."""
    client, _ = site
    put(client, Kind.SERVICE, "by-name", {"spec": {"type": "ExternalName", "externalName": "localhost"}})
    put(client, Kind.SERVICE, "by-address", {"spec": {"ports": [{"port": 443}]}})
    hooks = [
        {"name": f"{name}.mcagent.io", "clientConfig": {"service": {"namespace": HOME, "name": name}}, "rules": []}
        for name in ("by-name", "by-address")
    ]
    labels = {"app.kubernetes.io/name": "mcagent"}
    put(client, Kind.VALIDATING_WEBHOOK_CONFIGURATION, "hooks", {"webhooks": hooks}, labels=labels)
    examined = ExaminedCluster(client, Config(node_name="n1"))
    assert webhooks.ready_endpoints(examined) == {(HOME, "by-name"): 1, (HOME, "by-address"): 0}
