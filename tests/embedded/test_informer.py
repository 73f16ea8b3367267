"""The informer against the embedded API server over the loopback: sync, resume, relist, garbage, absence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from devtools.apiserver import GARBAGE, ApiServer, Fault, FaultKind
from devtools.lab.certificates import server_identity
from mcagent.agent.config import load
from mcagent.agent.object_reader import ObjectReader
from mcagent.cli.common.cluster_flags import usual_kubeconfig
from mcagent.core.imported_services import NEEDS
from mcagent.kube import bearer
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.kube.sources.apiserver import ApiServerSource
from mcagent.kube.sources.informer import Informer, Timing
from mcagent.model.api.base import as_json
from mcagent.model.backoff import Backoff
from mcagent.model.errors import SourceError
from mcagent.model.kinds import AGENT_KINDS, KINDS
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object
from mcagent.model.parsing.kubernetes import SOURCE_CLUSTER_LABEL
from tests.waiting import allowed, until
from tests.worlds.antrea_crds import ANTREA, definition
from tests.worlds.mirrors import FAST, Mirror, api, client, has_synced, mirror, put, requests, start

__all__ = ["api", "client", "mirror", "start"]  # fixtures

GATEWAYS = "/apis/multicluster.crd.antrea.io/v1alpha1/namespaces/kube-system/gateways"


def remove(api: ApiServer, kind: Kind, name: str, namespace: str = "kube-system") -> None:
    """Delete an object from the server's store."""
    info = KINDS[kind]
    rt = api.registry.find(info.group, info.version, info.plural)
    assert rt is not None
    api.store.delete(rt, namespace if info.namespaced else "", name)


def test_it_lists_in_pages_and_then_follows(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """What is there comes as one replace, whatever the pages; what happens then comes as events."""
    for number in range(8):
        put(api, Kind.GATEWAY, f"n{number}", gatewayIP="10.0.0.1")
    informer = start()
    mirror.wait_names(Kind.GATEWAY, *(f"n{number}" for number in range(8)))
    assert requests(api, "list") == 3
    put(api, Kind.GATEWAY, "new")
    remove(api, Kind.GATEWAY, "n0")
    put(api, Kind.GATEWAY, "n1", gatewayIP="10.0.0.9")
    mirror.wait(lambda: len(mirror.calls) == 4)
    assert mirror.calls == ["replace", "ADDED", "DELETED", "MODIFIED"]
    assert as_json(mirror.objects[Kind.GATEWAY]["kube-system/n1"])["gatewayIP"] == "10.0.0.9"
    state = informer.state()
    assert state.synced
    assert state.connected
    assert (state.lists, state.events, state.error) == (1, 3, "")


@pytest.mark.parametrize("kind", sorted(AGENT_KINDS))
def test_every_kind_is_read(kind: Kind, api: ApiServer, mirror: Mirror, start: Callable[..., Informer]) -> None:
    """Core and custom kinds, namespaced and not, are listed and watched alike."""
    if kind in ANTREA:
        api.registry.define(definition(kind))
    before = {"default", "kube-node-lease", "kube-public", "kube-system"} if kind is Kind.NAMESPACE else set()
    put(api, kind, "a")
    start(kind)
    mirror.wait_names(kind, "a", *before)
    put(api, kind, "b")
    mirror.wait_names(kind, "a", "b", *before)


def test_a_cut_watch_is_resumed_without_a_list(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """After a dropped connection the watch goes on from the last version: no list, nothing missed."""
    put(api, Kind.GATEWAY, "a")
    informer = start()
    mirror.wait_names(Kind.GATEWAY, "a")
    until(lambda: informer.state().connected)
    api.drop_connections()
    put(api, Kind.GATEWAY, "b")
    mirror.wait_names(Kind.GATEWAY, "a", "b")
    assert informer.state().lists == 1
    assert sum(informer.state().restarts.values()) >= 1


def test_a_delete_while_disconnected_is_not_missed(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """An object deleted (and another made) while the server was away is known as soon as it is back."""
    put(api, Kind.GATEWAY, "a")
    put(api, Kind.GATEWAY, "b")
    informer = start()
    mirror.wait_names(Kind.GATEWAY, "a", "b")
    api.refuse()
    until(lambda: "refused" in informer.state().error)  # no event comes by the earlier watch
    remove(api, Kind.GATEWAY, "a")
    put(api, Kind.GATEWAY, "c")
    assert not informer.state().connected
    assert mirror.names(Kind.GATEWAY) == {"a", "b"}
    api.refuse(False)
    mirror.wait_names(Kind.GATEWAY, "b", "c")


def test_lost_history_means_a_list(api: ApiServer, mirror: Mirror, start: Callable[..., Informer]) -> None:
    """After 410 everything is listed again, so a delete whose event was compacted away is known."""
    put(api, Kind.GATEWAY, "a")
    put(api, Kind.GATEWAY, "b")
    informer = start()
    mirror.wait_names(Kind.GATEWAY, "a", "b")
    api.refuse()
    until(lambda: "refused" in informer.state().error)  # no event comes by the earlier watch
    remove(api, Kind.GATEWAY, "a")
    put(api, Kind.NODE, "other")
    api.store.compact()
    api.refuse(False)
    mirror.wait_names(Kind.GATEWAY, "b")
    assert mirror.calls.count("replace") == 2
    assert informer.state().restarts["expired"] == 1


def test_bookmarks_save_a_quiet_watch_from_410(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """A kind in which nothing happens survives a compaction by others' changes without a list."""
    put(api, Kind.GATEWAY, "a")
    informer = start()
    mirror.wait_names(Kind.GATEWAY, "a")
    put(api, Kind.NODE, "busy")
    changed = api.store.rv
    until(lambda: int(informer._version or 0) >= changed)
    api.store.compact()
    api.drop_connections()
    until(lambda: sum(informer.state().restarts.values()) >= 1 and informer.state().connected)
    put(api, Kind.GATEWAY, "b")
    mirror.wait_names(Kind.GATEWAY, "a", "b")
    assert informer.state().lists == 1


def test_compaction_between_two_pages_is_survived(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """When the second page's version is gone, everything is listed in one."""
    for number in range(5):
        put(api, Kind.GATEWAY, f"n{number}")
    api.faults.add(Fault(kind=FaultKind.STATUS, code=410, path="continue=", times=1))
    start()
    mirror.wait_names(Kind.GATEWAY, *(f"n{number}" for number in range(5)))
    assert mirror.calls == ["replace"]


@pytest.mark.parametrize("body", sorted(GARBAGE))
@pytest.mark.parametrize("verb", ["list", "watch"])
def test_garbage_is_never_used(
    verb: str, body: str, api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """Whatever the server says, what is known stays until it talks sense again; then it catches up."""
    put(api, Kind.GATEWAY, "a")
    put(api, Kind.GATEWAY, "b")
    informer = start(timing=replace(FAST, backoff=Backoff(first=0.005, most=0.02)))
    mirror.wait_names(Kind.GATEWAY, "a", "b")
    api.faults.add(Fault(kind=FaultKind.GARBAGE, verbs=(verb,), body=body))
    if verb == "list":
        api.refuse()
        until(lambda: "refused" in informer.state().error)
        api.store.compact(api.store.rv)
        remove(api, Kind.GATEWAY, "b")
        put(api, Kind.NODE, "x")
        api.store.compact()
        api.refuse(False)
        until(lambda: requests(api, "list") > 2)
    else:
        api.drop_connections()
        until(lambda: requests(api, "watch") > 3)
        remove(api, Kind.GATEWAY, "b")
    assert "a" in (mirror.names(Kind.GATEWAY) or ())
    api.faults.clear()
    mirror.wait_names(Kind.GATEWAY, "a")
    until(lambda: informer.state().connected)


def test_a_list_follows_a_line_that_could_not_be_read(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """A later line of the same watch moves the version past the event that the bad line was."""
    put(api, Kind.GATEWAY, "a")
    put(api, Kind.GATEWAY, "b")
    informer = start()
    mirror.wait_names(Kind.GATEWAY, "a", "b")
    api.refuse()
    until(lambda: "refused" in informer.state().error)  # no event comes by the earlier watch
    remove(api, Kind.GATEWAY, "b")
    bookmark = {"kind": "Gateway", "metadata": {"resourceVersion": str(api.store.rv)}}
    body = f'{{"type": "DELETED"}}\n{json.dumps({"type": "BOOKMARK", "object": bookmark})}\n'
    api.faults.add(Fault(kind=FaultKind.GARBAGE, verbs=("watch",), times=1, body=body))
    api.refuse(False)
    mirror.wait_names(Kind.GATEWAY, "a")
    assert informer.state().restarts["bad-line"] == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind=FaultKind.TRUNCATED, times=3),
        Fault(kind=FaultKind.DROP, times=3),
        Fault(kind=FaultKind.STATUS, code=500, times=3),
        Fault(kind=FaultKind.STATUS, code=503, times=1),
        Fault(kind=FaultKind.STATUS, code=504, times=3),
        Fault(kind=FaultKind.SLOW, delay=0.2, times=3),
        Fault(kind=FaultKind.SILENT, times=1),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.code}",
)
def test_faults_pass(fault: Fault, api: ApiServer, mirror: Mirror, start: Callable[..., Informer]) -> None:
    """Cut, refused, slow and missing answers delay the first list and nothing else."""
    put(api, Kind.GATEWAY, "a")
    api.faults.add(fault)
    start(timing=Timing(list_timeout=0.5, inactivity=0.5, backoff=Backoff(first=0.02, most=0.2), steady=0.2))
    mirror.wait_names(Kind.GATEWAY, "a")
    put(api, Kind.GATEWAY, "b")
    mirror.wait_names(Kind.GATEWAY, "a", "b")


def test_a_watch_that_went_quiet_is_opened_anew(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """A connection that says nothing any more (no event, no bookmark) is given up after the inactivity time."""
    put(api, Kind.GATEWAY, "a")
    api.faults.add(Fault(kind=FaultKind.SILENT, verbs=("watch",), times=1))
    start(timing=Timing(inactivity=0.3, backoff=Backoff(first=0.02, most=0.2)))
    mirror.wait_names(Kind.GATEWAY, "a")
    put(api, Kind.GATEWAY, "b")
    mirror.wait_names(Kind.GATEWAY, "a", "b")


def test_a_restored_server_is_listed_again(api: ApiServer, mirror: Mirror, start: Callable[..., Informer]) -> None:
    """After a restore from a backup, versions go backwards, and a watch from before says nothing for ever."""
    for name in "abc":
        put(api, Kind.GATEWAY, name)
    start(timing=Timing(inactivity=0.5, steady=0.1, backoff=Backoff(first=0.02, most=0.2)))
    mirror.wait_names(Kind.GATEWAY, "a", "b", "c")
    with api.store.lock:  # the informer's version is now one of the future
        api.store._rv -= 3
    put(api, Kind.GATEWAY, "d")
    mirror.wait_names(Kind.GATEWAY, "a", "b", "c", "d")


def test_a_server_that_ends_every_watch_is_not_hammered(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """With watches that end at once and lists that fail, requests come ever more slowly."""
    api.faults.add(Fault(kind=FaultKind.GARBAGE, verbs=("watch",), body="empty"))
    start(timing=Timing(backoff=Backoff(first=0.05, most=5.0)))
    mirror.wait(lambda: "replace" in mirror.calls)
    until(lambda: requests(api, "watch") >= 5)
    times = [when for when, verb, _ in list(api.requests) if verb == "watch"]
    assert times[4] - times[3] > (times[1] - times[0]) * 1.5


def test_an_unknown_event_type_is_passed_over(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """An event type of the future is counted and changes nothing."""
    api.faults.add(Fault(kind=FaultKind.GARBAGE, verbs=("watch",), body="unknown-type", times=1))
    informer = start()
    until(lambda: informer.state().restarts.get("unknown-event") == 1)
    put(api, Kind.GATEWAY, "a")
    mirror.wait_names(Kind.GATEWAY, "a")
    assert informer.state().lists == 1


def test_an_expired_token_is_read_again(tmp_path: Path, mirror: Mirror) -> None:
    """When the server no longer takes the token, the credentials are read again, and the new one is used."""
    with ApiServer(tokens=frozenset({"old"}), bookmark_interval=0.1) as api:
        file = tmp_path / "kubeconfig"
        api.write_kubeconfig(file)
        client = Client(str(file))
        informer = Informer(Kind.GATEWAY, client, mirror, timing=FAST)
        informer.start()
        mirror.wait(lambda: "replace" in mirror.calls)
        api.tokens = frozenset({"new"})
        api.drop_connections()
        until(lambda: informer.state().restarts.get("unauthorized", 0) > 0)
        put(api, Kind.GATEWAY, "a")
        api.write_kubeconfig(file)
        mirror.wait_names(Kind.GATEWAY, "a")
        informer.stop()
        client.close()


def test_a_token_that_cannot_be_sent_is_nowhere(
    tmp_path: Path, mirror: Mirror, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the log nor the state, which status and metrics show, holds it; one with a line end is used."""
    file, token = tmp_path / "kubeconfig", tmp_path / "token"
    with ApiServer(tokens=frozenset({"c4n4ry"}), bookmark_interval=0.1) as api:
        put(api, Kind.GATEWAY, "a")
        config = token_kubeconfig(f"http://{api.address}", b"", "")
        config["users"][0]["user"] = {"tokenFile": str(token)}
        file.write_text(json.dumps(config))
        token.write_text("c4n4ry\nc4n4ry\n")
        client = Client(str(file))
        informer = Informer(Kind.GATEWAY, client, mirror, timing=FAST)
        informer.start()
        until(lambda: "token" in informer.state().error)
        assert "token" in caplog.text
        assert "c4n4ry" not in caplog.text + str(informer.state())
        token.write_text("c4n4ry\n")
        mirror.wait_names(Kind.GATEWAY, "a")
        informer.stop()
        client.close()
    assert "c4n4ry" not in caplog.text


@pytest.fixture
def in_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ApiServer, Path]]:
    """Give a server with TLS and the surroundings of a Pod; the path is that of the token."""
    identity, token = server_identity(tmp_path / "pki", ["127.0.0.1"]), tmp_path / "token"
    token.write_text("old")
    (tmp_path / "ca.crt").write_bytes(identity.ca.read_bytes())
    monkeypatch.setattr(bearer, "SERVICE_ACCOUNT", tmp_path)
    with ApiServer(tokens=frozenset({"old"}), tls=identity, bookmark_interval=0.1) as api:
        host, _, port = api.address.partition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        yield api, token


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_pod_reads_with_its_service_account(in_cluster: tuple[ApiServer, Path], mirror: Mirror) -> None:
    """Over TLS with the Pod's token; a token that was rotated, or is missing for a while, is read again."""
    api, token = in_cluster
    client = Client()
    assert client.server.startswith("https://")
    informer = Informer(Kind.GATEWAY, client, mirror, timing=FAST)
    informer.start()
    put(api, Kind.GATEWAY, "a")
    mirror.wait_names(Kind.GATEWAY, "a")
    api.tokens = frozenset({"new"})
    token.unlink()
    api.drop_connections()
    until(lambda: "a file does not exist" in informer.state().error)
    token.write_text("new")
    put(api, Kind.GATEWAY, "b")
    mirror.wait_names(Kind.GATEWAY, "a", "b")
    informer.stop()
    client.close()


@pytest.mark.timing
def test_it_stops_at_once(api: ApiServer, mirror: Mirror, start: Callable[..., Informer]) -> None:
    """An idle watch is cut by stop, and nothing is delivered afterwards."""
    informer = start(timing=Timing(inactivity=60.0))
    until(lambda: informer.state().connected)
    began = time.monotonic()
    informer.stop(timeout=5.0)
    assert time.monotonic() - began < allowed(1.0)
    assert not informer._thread.is_alive()
    calls = list(mirror.calls)
    put(api, Kind.GATEWAY, "a")
    assert mirror.calls == calls


def test_kinds_come_and_go_with_the_role(api: ApiServer, client: Client, mirror: Mirror) -> None:
    """A kind that is no longer wanted is forgotten; a changed field selector lists that kind anew."""
    put(api, Kind.GATEWAY, "g")
    put(api, Kind.GATEWAY, "elsewhere", namespace="default")
    for name, node in (("p1", "n1"), ("p2", "n2")):
        put(api, Kind.POD, name, spec={"nodeName": node})
    source = ApiServerSource(client, mirror, namespace="kube-system", timing=FAST)
    source.start([Kind.GATEWAY])
    mirror.wait_names(Kind.GATEWAY, "g")
    source.set_kinds([Kind.GATEWAY, Kind.POD], {Kind.POD: "spec.nodeName!=n1"})
    mirror.wait_names(Kind.POD, "p2")
    until(lambda: has_synced(source))
    source.set_kinds([Kind.GATEWAY, Kind.POD], {Kind.POD: "spec.nodeName=n1"})
    mirror.wait_names(Kind.POD, "p1")
    source.set_kinds([Kind.GATEWAY, Kind.POD], {}, {Kind.POD: "app"})
    mirror.wait_names(Kind.POD)
    source.set_kinds([Kind.GATEWAY, Kind.POD])
    assert mirror.names(Kind.POD) in (None, {"p1", "p2"})  # unknown until all are listed
    mirror.wait_names(Kind.POD, "p1", "p2")
    source.set_kinds([Kind.GATEWAY])
    mirror.wait(lambda: Kind.POD not in mirror.objects)
    assert set(source.state()) == {Kind.GATEWAY}
    assert source.state()[Kind.GATEWAY].lists == 1
    source.stop()


def test_a_worker_reads_imported_services_alone_and_a_gateway_all(api: ApiServer, tmp_path: Path) -> None:
    """Services and slices are selected by their labels at the API server: the others cost a Node nothing.

    Where everything is needed suddenly, nothing is known until everything is listed.
    """
    api.write_kubeconfig(tmp_path / "kubeconfig")
    put(api, Kind.SERVICE, "own")
    put(api, Kind.ENDPOINT_SLICE, "own")
    labels, source = {"app.kubernetes.io/managed-by": "mcagent"}, {SOURCE_CLUSTER_LABEL: "east"}
    put(api, Kind.SERVICE, "antrea-mc-web", metadata={"name": "antrea-mc-web", "labels": labels})
    owned = {**source, "kubernetes.io/service-name": "antrea-mc-web"}
    put(api, Kind.ENDPOINT_SLICE, "web-east", metadata={"name": "web-east", "labels": owned})
    objects = ObjectReader(
        load(None, {}, {"nodeName": "n1", "kubeconfig": f"{tmp_path}/kubeconfig"}), lambda: None
    )
    objects.start(write=False)
    try:
        objects.set_kinds(NEEDS, all_pods=False, all_services=False)
        until(lambda: objects.take().synced >= NEEDS)
        all_objects = objects.take()
        assert set(all_objects.services) == {"kube-system/antrea-mc-web"}
        assert set(all_objects.endpoint_slices) == {"kube-system/web-east"}
        assert all_objects.selected == {Kind.SERVICE, Kind.ENDPOINT_SLICE}
        objects.set_kinds(NEEDS, all_pods=False, all_services=True)
        all_objects = objects.take()
        assert all_objects.selected == frozenset()
        assert Kind.SERVICE not in all_objects.synced or "kube-system/own" in all_objects.services
        until(lambda: objects.take().synced >= NEEDS)
        assert "kube-system/own" in objects.take().services
    finally:
        objects.stop()


def test_a_missing_definition_is_told_plainly(api: ApiServer, start: Callable[..., Informer]) -> None:
    """When the API has no such resource, the state says so, in words that name the cure."""
    api.registry._types.pop(("multicluster.x-k8s.io", "serviceexports"))
    informer = start(Kind.SERVICE_EXPORT)
    until(lambda: "are the CRDs installed" in informer.state().error)
    assert not informer.state().synced


def test_a_kind_that_need_not_be_there_counts_as_empty_until_it_is(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """It is synced and connected without an error, and its objects come once the API server serves it."""
    definition = api.registry._types.pop(("multicluster.x-k8s.io", "serviceexports"))
    put_later = ("multicluster.x-k8s.io", "serviceexports")
    informer = start(Kind.SERVICE_EXPORT, dispensable=frozenset({404}))
    until(lambda: informer.state().synced)
    assert (informer.state().connected, informer.state().error) == (True, "")
    api.registry._types[put_later] = definition
    put(api, Kind.SERVICE_EXPORT, "web")
    until(lambda: "kube-system/web" in mirror.objects[Kind.SERVICE_EXPORT])


def test_a_kind_that_may_not_be_read_can_be_done_without(
    api: ApiServer, mirror: Mirror, start: Callable[..., Informer]
) -> None:
    """It counts as empty, the state tells why, and its objects come with the right to read them."""
    put(api, Kind.SERVICE_EXPORT, "web")
    api.faults.add(Fault(kind=FaultKind.STATUS, code=403, path="serviceexports"))
    informer = start(Kind.SERVICE_EXPORT, dispensable=frozenset({403, 404}))
    until(lambda: informer.state().synced)
    assert mirror.names(Kind.SERVICE_EXPORT) == set()
    until(lambda: "403" in informer.state().error)
    api.faults.clear()
    mirror.wait_names(Kind.SERVICE_EXPORT, "web")
    until(lambda: (informer.state().connected, informer.state().error) == (True, ""))


@pytest.mark.parametrize("text", ["", "{", "[]", "clusters: 7", "apiVersion: v1\nkind: Config\n"])
def test_a_bad_kubeconfig_is_a_source_error(tmp_path: Path, text: str) -> None:
    """A kubeconfig that cannot be used names its file."""
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(SourceError, match="kubeconfig"):
        Client(str(file))
    with pytest.raises(SourceError, match="no such file"):
        Client(str(tmp_path / "none"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize("way", ["service account", "file", "data"])
def test_a_server_with_another_authoritys_certificate_gets_no_token(
    in_cluster: tuple[ApiServer, Path], tmp_path: Path, way: str
) -> None:
    """Whatever names the authority; with the right one the server answers."""
    api, token = in_cluster
    own = (tmp_path / "ca.crt").read_bytes()
    other = server_identity(tmp_path / "other", ["127.0.0.1"]).ca.read_bytes()
    for ca, trusted in ((own, True), (other, False)):
        (tmp_path / "ca.crt").write_bytes(ca)
        kubeconfig = token_kubeconfig(f"https://{api.address}", ca if way == "data" else b"", token.read_text())
        if way == "file":
            kubeconfig["clusters"][0]["cluster"]["certificate-authority"] = str(tmp_path / "ca.crt")
        client = Client("" if way == "service account" else kubeconfig)
        with nullcontext() if trusted else pytest.raises(SourceError, match="certificate"):
            client.request("GET", "/version", timeout=5)
        client.close()


def test_outside_a_pod_the_error_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a service account and without a kubeconfig the error begins with the latter."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SourceError, match=r"^no kubeconfig: give a kubeconfig \(--kubeconfig, "):
        Client()


def test_an_unknown_context_is_answered_with_those_of_the_kubeconfig(tmp_path: Path) -> None:
    """Their names, not how the client looked for one."""
    file = tmp_path / "kubeconfig"
    document = token_kubeconfig("http://127.0.0.1:1", b"", "t")
    document["contexts"] = [{**document["contexts"][0], "name": name} for name in ("east", "west")]
    file.write_text(json.dumps({**document, "current-context": "east"}))
    with pytest.raises(SourceError) as refused:
        Client(str(file), "nope")
    assert str(refused.value) == f'kubeconfig {file}: has no context "nope"; it has east, west'
    Client(str(file), "west").close()


def test_several_kubeconfigs_are_merged_as_by_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$KUBECONFIG may name several: all contexts can be used, and the current one is that of the first file."""
    for number, name in enumerate(("east", "west"), start=1):
        document = json.dumps(token_kubeconfig(f"http://127.0.0.1:{number}", b"", "t"))
        for old in ("c", "u", "x"):
            document = document.replace(f'"{old}"', f'"{name}-{old}"')
        (tmp_path / name).write_text(document)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none:{tmp_path}/east:{tmp_path}/west")
    for context, server in (("", 1), ("east-x", 1), ("west-x", 2)):
        client = Client(usual_kubeconfig(), context)
        client.close()
        assert client.server == f"http://127.0.0.1:{server}"
    with pytest.raises(SourceError, match='has no context "nope"; it has east-x, west-x'):
        Client(usual_kubeconfig(), "nope")


def test_trimming_keeps_what_is_read_and_judges_nothing() -> None:
    """Fields that nobody reads go, and values of wrong types, which are named."""
    pod = {
        "kind": "Pod",
        "metadata": {"name": "a", "managedFields": [1], "labels": {"app": "x"}, "annotations": 7},
        "spec": {"nodeName": "n", "containers": [{"image": "x"}]},
        "status": "odd",
    }
    decoded = read_object(Kind.POD, pod)
    assert as_json(decoded) == {
        "metadata": {"name": "a", "labels": {"app": "x"}},
        "spec": {"nodeName": "n", "containers": ({},)},
    }
    assert decoded.fault is not None
    assert [(error.path, error.reason) for error in decoded.fault.errors] == [
        ("metadata.annotations", "must be a mapping, is a number"),
        ("status", "must be a mapping, is a string"),
    ]


def test_the_client_is_loaded_only_when_it_is_used() -> None:
    """Importing everything in mcagent.kube loads neither the kubernetes client nor urllib3."""
    code = (
        "import sys, mcagent.kube.sources.apiserver, mcagent.kube.client\n"
        "import json; print(json.dumps([m for m in ('kubernetes', 'urllib3') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
