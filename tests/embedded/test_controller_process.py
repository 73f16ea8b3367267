"""Leader and member as they are deployed: with the manifests applied, behind the webhook, as processes."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import Fault, FaultKind
from devtools.ports import free_port
from mcagent.controller.config import ControllerRole
from mcagent.controller.contract.conditions import time_text
from mcagent.controller.contract.member_tokens import anchor_name, claims_of
from mcagent.controller.machinery.informers import OPTIONAL
from mcagent.controller.settings import MemberSettings
from mcagent.kube.credentials import token_kubeconfig
from mcagent.model.objects import Kind
from tests.embedded.controlworld import CA, Objects
from tests.embedded.processes import COMMON_AREA, MEMBER_HOME, Cluster
from tests.waiting import until
from tests.worlds.member_tokens import a_token


def get(port: int, path: str) -> tuple[int, str]:
    """Return status and text of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Give a function that makes a cluster; all are closed at the end."""
    clusters: list[Cluster] = []

    def make(role: ControllerRole, **fields: Any) -> Cluster:
        cluster = Cluster(role, tmp_path, **fields)
        clusters.append(cluster)
        return cluster

    yield make
    for cluster in reversed(clusters):
        cluster.close()


def ready(objects: Objects, namespace: str) -> bool:
    """Tell whether the ClusterSet is Ready."""
    cluster_set = objects.get(Kind.CLUSTER_SET, "blue", namespace)
    conditions = (cluster_set.get("status") or {}).get("conditions") or ()
    return any((item["type"], item["status"]) == ("Ready", "True") for item in conditions)


def test_a_leader_that_stops_lets_a_controller_of_another_namespace_lead(cluster: Callable[..., Cluster]) -> None:
    """With the rights of the manifests, it marks its ClusterSet while it runs."""
    leader = cluster(ControllerRole.LEADER)
    spec = {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    leader.objects.put(Kind.CLUSTER_SET, "blue", COMMON_AREA, spec=spec)

    def holder() -> str | None:
        cluster_set = leader.objects.get(Kind.CLUSTER_SET, "blue", COMMON_AREA)
        return (cluster_set["metadata"].get("annotations") or {}).get("mcagent.io/controller")

    leading = leader.start()
    until(lambda: holder() == COMMON_AREA, timeout=20)
    leader.controllers.remove(leading)
    leading.stop()
    assert holder() is None


def test_a_service_is_imported_behind_the_webhooks_and_withdrawn(cluster: Callable[..., Cluster]) -> None:
    """From nothing to an imported Service and back, with the manifests' webhooks in force."""
    leader = cluster(ControllerRole.LEADER)
    leading = leader.start()
    until(leading.ready)
    until(leading.leading)
    east = cluster(ControllerRole.MEMBER, cidr="10.97.0.0/16")
    leader.objects.put(
        Kind.CLUSTER_SET, "blue", COMMON_AREA, spec={"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    )
    member = east.start(MemberSettings(service_cidr="10.97.0.0/16"))
    east.join(leader, "east", leader.bind_member("east"))
    until(lambda: ready(east.objects, MEMBER_HOME), timeout=20)
    until(lambda: ready(leader.objects, COMMON_AREA), timeout=20)
    until(lambda: leader.objects.get(Kind.RESOURCE_IMPORT, "east-clusterinfo", COMMON_AREA), timeout=20)
    ports = [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    east.objects.put(Kind.SERVICE, "web", "default", spec={"type": "ClusterIP", "ports": ports})
    east.objects.put(
        Kind.ENDPOINT_SLICE,
        "web-1",
        "default",
        metadata={"labels": {"kubernetes.io/service-name": "web"}},
        addressType="IPv4",
        endpoints=[{"addresses": ["10.1.0.4"], "conditions": {"ready": True}}],
        ports=[{"port": 80, "protocol": "TCP", "name": ""}],
    )
    east.objects.put(Kind.SERVICE_EXPORT, "web", "default")
    until(lambda: east.objects.get(Kind.SERVICE_IMPORT, "web", "default"), timeout=20)
    until(lambda: member.engine.idle() and leading.engine.idle(), timeout=20)
    assert leading.webhook is not None
    answers = leading.webhook.counts()
    assert answers["ResourceExport", "allowed"] >= 3
    assert answers["MemberClusterAnnounce", "allowed"] >= 1
    for controller in (leading, member):
        assert not controller.engine.written.failures()
        states = [state for states in controller.engine.informers().values() for state in states]
        assert not [state for state in states if state.error and state.kind not in OPTIONAL]
    # leaving takes back all of it
    east.objects.remove(Kind.CLUSTER_SET, "blue")
    until(lambda: east.objects.get(Kind.CLUSTER_SET, "blue") is None, timeout=20)
    until(lambda: leader.objects.names(Kind.RESOURCE_EXPORT) == [], timeout=20)
    until(lambda: leader.objects.names(Kind.MEMBER_CLUSTER_ANNOUNCE) == [], timeout=20)
    assert east.objects.names(Kind.GATEWAY) == []
    assert "antrea-mc-web" not in east.objects.names(Kind.SERVICE)


def due_token(leader: Cluster, account: str, anchor: str) -> str:
    """Return a token of an account that is bound to a Secret, and past two thirds of its life."""
    bound: dict[str, Any] = {"namespace": COMMON_AREA}
    for key, kind, name in (("serviceaccount", Kind.SERVICE_ACCOUNT, account), ("secret", Kind.SECRET, anchor)):
        uid = leader.objects.get(kind, name, COMMON_AREA)["metadata"]["uid"]
        bound[key] = {"name": name, "uid": uid}
    return a_token(iat=int(time.time()) - 3000, exp=int(time.time()) + 600, **{"kubernetes.io": bound})


def test_imports_stay_while_the_token_is_renewed(cluster: Callable[..., Cluster]) -> None:
    """The ClusterInfoImport of another member is not written, and what that exports afterwards is imported."""
    leader = cluster(ControllerRole.LEADER)
    until(leader.start().leading)
    spec = {"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    leader.objects.put(Kind.CLUSTER_SET, "blue", COMMON_AREA, spec=spec)
    anchor = anchor_name("east", 3600, "a" * 20)
    leader.objects.put(Kind.SECRET, anchor, COMMON_AREA)
    members = {}
    for number, name in enumerate(("east", "west")):
        members[name] = cluster(ControllerRole.MEMBER, cidr=f"10.{97 + number}.0.0/16")
        members[name].start(MemberSettings(service_cidr=f"10.{97 + number}.0.0/16"))
        members[name].join(leader, name, leader.bind_member(name), f"192.168.7.{1 + number}")
    east, west = members.values()

    def imported() -> Any:
        return east.objects.get(Kind.CLUSTER_INFO_IMPORT, "west-clusterinfo")

    until(lambda: "192.168.7.2" in str(imported()), timeout=30)
    until(lambda: imported()["spec"].get("serviceCIDR"), timeout=30)  # granted after the gateway
    before, writes = imported(), east.objects.writes("/clusterinfoimports")
    first = due_token(leader, "east", anchor)
    data = {"ca.crt": base64.b64encode(CA).decode(), "token": base64.b64encode(first.encode()).decode()}
    east.objects.put(Kind.SECRET, "leader-access", data=data)

    def condition() -> Any:
        status = east.objects.get(Kind.CLUSTER_SET, "blue")["status"]
        return {item["type"]: item for item in status["conditions"]}.get("LeaderToken", {})

    def renewed() -> Any:
        stored = east.objects.get(Kind.SECRET, "leader-access")["data"]["token"]
        return claims_of(base64.b64decode(stored).decode())

    until(lambda: renewed().renewal > time.time(), timeout=20)
    until(lambda: time_text(renewed().expires) in condition().get("message", ""), timeout=20)
    assert condition()["reason"] == "TokenValid"
    west.objects.put(Kind.SERVICE, "web", "default", spec={"type": "ClusterIP", "ports": [{"port": 80}]})
    west.objects.put(Kind.SERVICE_EXPORT, "web", "default")
    until(lambda: east.objects.get(Kind.SERVICE_IMPORT, "web", "default"), timeout=20)
    assert imported()["metadata"]["uid"] == before["metadata"]["uid"]
    assert east.objects.writes("/clusterinfoimports") == writes
    assert ready(east.objects, MEMBER_HOME)


def test_a_member_that_claims_to_be_another_is_refused(cluster: Callable[..., Cluster]) -> None:
    """The token of west announces nothing for east, and the member says why."""
    leader = cluster(ControllerRole.LEADER)
    leading = leader.start()
    until(leading.ready)
    until(leading.leading)
    leader.objects.put(
        Kind.CLUSTER_SET, "blue", COMMON_AREA, spec={"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    )
    member = cluster(ControllerRole.MEMBER)
    running = member.start(MemberSettings(service_cidr="10.96.0.0/16"))
    member.join(leader, "east", leader.bind_member("west"))
    until(
        lambda: any("denied the request" in why for why in running.engine.written.failures().values()), timeout=20
    )
    assert leader.objects.names(Kind.MEMBER_CLUSTER_ANNOUNCE) == []
    assert leader.objects.names(Kind.RESOURCE_EXPORT) == []
    until(lambda: any("AnnounceFailed" in name for name in events(member)), timeout=20)


def test_a_refused_member_is_never_ready_after_an_earlier_membership(cluster: Callable[..., Cluster]) -> None:
    """Join, leave, and join with the token of another cluster: what the leader accepted before counts no more."""
    leader = cluster(ControllerRole.LEADER)
    until(leader.start().ready)
    leader.objects.put(
        Kind.CLUSTER_SET, "blue", COMMON_AREA, spec={"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    )
    member = cluster(ControllerRole.MEMBER)
    member.start(member=MemberSettings(service_cidr="10.96.0.0/16"))
    conditions: list[tuple[str, str]] = []  # of Ready, one for each look

    def ready(status: str, reason: str) -> bool:
        cluster_set = member.objects.get(Kind.CLUSTER_SET, "blue") or {}
        present = (cluster_set.get("status") or {}).get("conditions") or []
        conditions.extend((item["status"], item["reason"]) for item in present if item["type"] == "Ready")
        return (status, reason) in conditions

    def leave() -> None:
        member.objects.remove(Kind.CLUSTER_SET, "blue")
        until(lambda: member.objects.get(Kind.CLUSTER_SET, "blue") is None, timeout=20)
        conditions.clear()

    member.join(leader, "east", leader.bind_member("east"))
    until(lambda: ready("True", "Connected"), timeout=20)
    wrong_token = leader.bind_member("west")
    for _ in range(2):  # after a membership, and after a refusal
        leave()
        member.join(leader, "east", wrong_token)
        until(lambda: ready("False", "AnnounceFailed"), timeout=20)
        assert ("True", "Connected") not in conditions


def test_a_member_is_ready_once_the_leader_takes_its_announcement(cluster: Callable[..., Cluster]) -> None:
    """While nobody answers at the leader's webhook the ClusterSet says so; once somebody does it joins."""
    leader = cluster(ControllerRole.LEADER)
    leader.objects.put(
        Kind.CLUSTER_SET, "blue", COMMON_AREA, spec={"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    )
    member = cluster(ControllerRole.MEMBER)
    member.start(MemberSettings(service_cidr="10.96.0.0/16"))
    member.join(leader, "east", leader.bind_member("east"))

    def said() -> dict[str, Any]:
        cluster_set = member.objects.get(Kind.CLUSTER_SET, "blue") or {}
        conditions = (cluster_set.get("status") or {}).get("conditions") or [{}]
        return next((item for item in conditions if item.get("type") == "Ready"), {})

    until(lambda: said().get("reason") == "AnnounceFailed", timeout=20)
    assert "webhook" in said()["message"]
    assert leader.objects.names(Kind.MEMBER_CLUSTER_ANNOUNCE) == []
    leader.start()
    until(lambda: ready(member.objects, MEMBER_HOME), timeout=30)
    assert leader.objects.names(Kind.MEMBER_CLUSTER_ANNOUNCE) == ["member-announce-from-east"]
    until(lambda: leader.objects.names(Kind.RESOURCE_EXPORT) == ["east-clusterinfo"], timeout=20)


def test_a_token_that_may_not_be_read_is_told(cluster: Callable[..., Cluster]) -> None:
    """While the Secret may not be read the controller names it and the commands, and goes on once it may."""
    leader = cluster(ControllerRole.LEADER)
    until(leader.start().ready)
    leader.objects.put(
        Kind.CLUSTER_SET, "blue", COMMON_AREA, spec={"clusterID": "north", "leaders": [{"clusterID": "north"}]}
    )
    member = cluster(ControllerRole.MEMBER)
    running = member.start(MemberSettings(service_cidr="10.96.0.0/16"))
    member.api.faults.add(Fault(kind=FaultKind.STATUS, code=403, path="leader-access"))
    member.join(leader, "east", leader.bind_member("east"))

    def told() -> bool:
        cluster_set = member.objects.get(Kind.CLUSTER_SET, "blue") or {}
        text = json.dumps(cluster_set.get("status") or {})
        return "Secret kube-system/leader-access cannot be read" in text and (
            "kubectl -n kube-system create role mcagent-leader-token" in text
        )

    until(told, timeout=20)
    assert running.engine.view.leader is not None
    member.api.faults.clear()
    until(lambda: ready(member.objects, MEMBER_HOME), timeout=60)


def events(cluster: Cluster) -> list[str]:
    """Return the reasons of all Events."""
    return [
        str(cluster.objects.get(Kind.EVENT, name)["reason"])
        for name in cluster.objects.names(Kind.EVENT)
        if cluster.objects.get(Kind.EVENT, name)
    ]


def test_pages_tell_how_it_is(cluster: Callable[..., Cluster]) -> None:
    """Ready when all is listed and the webhook has a certificate; metrics and status name both sides."""
    leader = cluster(ControllerRole.LEADER)
    controller = leader.start()
    until(lambda: get(controller.port, "/readyz")[0] == 200)
    assert get(controller.port, "/healthz") == (200, "ok\n")
    status = json.loads(get(controller.port, "/status")[1])
    assert status["ready"]
    assert status["role"] == "leader"
    until(lambda: "mcagent_controller_is_leader 1.0" in get(controller.port, "/metrics")[1])
    text = get(controller.port, "/metrics")[1]
    for line in (
        'mcagent_controller_queue_depth{reconciler="service-merge"} 0.0',
        'mcagent_controller_objects{kind="ClusterSet",side="local"} 0.0',
        'mcagent_controller_informer_connected{kind="ResourceExport",side="local"} 1.0',
        "mcagent_controller_webhook_certificate_expiry_timestamp_seconds ",
    ):
        assert line in text, text
    assert "mcagent_controller_leader_connected" not in text  # a member's


def test_a_process_starts_and_ends_in_order(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """`mcagent controller member`: SIGTERM frees its Lease; its webhook answers a while more; it ends with 0."""
    member = cluster(ControllerRole.MEMBER)
    kubeconfig = tmp_path / "kubeconfig"
    token = member.token("mcagent-controller")
    kubeconfig.write_text(json.dumps(token_kubeconfig(member.api.url, b"", token)))
    port = free_port()
    config = tmp_path / "controller.yaml"
    config.write_text(
        "apiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: MultiClusterConfig\n"
        f"health: {{healthProbeBindAddress: '127.0.0.1:{port}'}}\n"
        f"webhook: {{host: 127.0.0.1, port: {member.port}}}\npodCIDRs: ['']\nserviceCIDR: ''\n"
    )
    command = [sys.executable, "-m", "mcagent.cli.main", "controller", "member", "--config", str(config)]
    process = subprocess.Popen(
        [*command, "--kubeconfig", str(kubeconfig), "--pod-namespace", MEMBER_HOME],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:

        def is_ready() -> bool:
            assert process.poll() is None
            try:
                return get(port, "/readyz")[0] == 200
            except OSError:
                return False

        until(is_ready, timeout=30)
        until(lambda: member.objects.get(Kind.LEASE, "mcagent-member"), timeout=10)
        process.send_signal(signal.SIGTERM)
        until(lambda: not member.objects.get(Kind.LEASE, "mcagent-member")["spec"]["holderIdentity"], timeout=10)
        with socket.create_connection(("127.0.0.1", member.port), timeout=5) as webhook:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.wrap_socket(webhook).close()
        _, log = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, log
    assert "Service CIDR of this cluster: 10.96.0.0/16" in log
    assert token not in log
    assert "Traceback" not in log
