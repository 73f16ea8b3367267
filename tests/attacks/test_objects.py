"""Attacks with objects: nested, huge, malformed, with letters that a terminal obeys."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer
from devtools.waiting import wait_until
from mcagent.agent.snapshot_store import SnapshotStore
from mcagent.controller.admission.decision import ALLOWED
from mcagent.controller.config import ControllerRole
from mcagent.controller.contract import names
from mcagent.core.compile import compile_desired
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.kube.source import RawObject, WatchEvent, object_key
from mcagent.kube.sources.apiserver import ApiServerSource
from mcagent.kube.sources.informer import Informer, Timing
from mcagent.model.api.base import ApiObject, as_json
from mcagent.model.backoff import Backoff
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import GroupEntry
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.document import MAX_DEPTH, decode_noting_cuts
from mcagent.observe.logs import JsonFormatter, TextFormatter
from mcagent.supervised import dead
from tests.attacks.catalogue import Attacker, Group, attack
from tests.embedded.hook import Hook
from tests.kube.shipped_webhooks import Shipped, join
from tests.kube.shipped_webhooks import cluster_set as a_set
from tests.kube.shipped_webhooks import gateway as a_gateway
from tests.worlds import agentworld
from tests.worlds.apiservers import Cluster, refusal
from tests.worlds.controllers import Controller, controller
from tests.worlds.leader_world import SET, announce, cluster_set, endpoints, service
from tests.worlds.mirrors import has_synced, put

by_member = partial(attack, Group.OBJECTS, Attacker.MEMBER)
by_user = partial(attack, Group.OBJECTS, Attacker.USER)

QUICK = Timing(list_timeout=20.0, backoff=Backoff(first=0.02, most=0.2), steady=0.2)
ESCAPES = "\x1b[2J\r\nlevel=error forged by mallory\x07\x9b31m\u202e"
MARK = "@here@"


def nested(levels: int) -> str:
    """Return JSON of so many lists inside each other."""
    return "[" * levels + "]" * levels


def created(cluster: Cluster, obj: RawObject, inside: str = "null") -> None:
    """Create an object as its member does; `inside` is the JSON that stands for "@here@" in it."""
    kind = Kind(obj["kind"])
    body = {**obj, "apiVersion": KINDS[kind].api_version}
    body["metadata"] = {**obj["metadata"], "namespace": cluster.namespace}
    text = json.dumps(body).replace(f'"{MARK}"', inside)
    cluster.client.request("POST", object_path(kind, cluster.namespace), body=text.encode())


def with_payload(name: str, **spec: Any) -> RawObject:
    """Return a Service export of mallory with fields of its spec."""
    payload = service("mallory", f"evil/{name}")
    payload["spec"]["service"]["serviceSpec"] |= spec
    return payload


def good(cluster: Cluster, name: str = "nginx") -> None:
    """Export a Service of east."""
    for obj in (service("east", f"default/{name}"), endpoints("east", ["10.97.0.1"], f"default/{name}")):
        created(cluster, obj)


def imported(cluster: Cluster, name: str = "nginx") -> bool:
    """Tell whether the leader has merged a Service."""
    path = object_path(Kind.RESOURCE_IMPORT, cluster.namespace, f"default-{name}-service")
    return refusal(cluster.client, "GET", path) is None


@contextmanager
def leading(cluster: Cluster, directory: Path) -> Iterator[Controller]:
    """Run a leader's controller in the test's namespace; it is to be in order afterwards."""
    with controller("leader", cluster.server.kubeconfig, cluster.namespace, directory) as leader_process:
        yield leader_process
        assert leader_process.page("/healthz") == "ok\n"
        assert leader_process.ready()
        assert "Traceback" not in leader_process.log.read_text()


def joined(cluster: Cluster) -> None:
    """Make a ClusterSet with the member east."""
    created(cluster, cluster_set())
    created(cluster, announce("east"))


class Mirror:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.objects: dict[str, ApiObject] = {}
        self.lists = 0

    def replace(self, kind: Kind, objects: Sequence[ApiObject]) -> None:
        """Take a list."""
        self.objects = {object_key(obj): obj for obj in objects}
        self.lists += 1

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Take an event."""
        self.objects[event.key] = event.object

    def forget(self, kind: Kind) -> None:
        """Nothing."""

    def names(self) -> set[str]:
        """Return the names known."""
        return {key.rpartition("/")[2] for key in self.objects}


@contextmanager
def reading(cluster: Cluster, timing: Timing = QUICK) -> Iterator[tuple[Informer, Mirror]]:
    """Read exports as a leader does."""
    mirror = Mirror()
    informer = Informer(
        Kind.RESOURCE_EXPORT,
        cluster.client,
        mirror,
        namespace=cluster.namespace,
        timing=timing,
    )
    informer.start()
    try:
        yield informer, mirror
    finally:
        informer.stop()


# --- nesting ---------------------------------------------------------------------------------------------


@pytest.mark.real_only
@by_member(
    wants="end the leader for all with an export that is nested 700 deep",
    stopped_by="decoding that cuts what is nested more than 64 deep, before anything walks it",
)
def test_a_nested_export_does_not_end_the_leader(cluster: Cluster, tmp_path: Path) -> None:
    """A leader that watches goes on merging, is healthy, and tells which export it was."""
    joined(cluster)
    with leading(cluster, tmp_path) as leader:
        created(cluster, with_payload("web", x=MARK), nested(700))
        created(cluster, with_payload("db", sessionAffinityConfig=MARK), nested(3000))
        good(cluster)
        wait_until(lambda: imported(cluster), "the Service to be imported", timeout=30)
        wait_until(
            lambda: leader.metric("mcagent_controller_informer_restarts_total", "object-nested") >= 2,
            "the nested exports to be counted",
            timeout=10,
        )
        assert "mallory-evil-web-service: what is nested more than 64 deep is not read" in leader.log.read_text()


@pytest.mark.real_only
@by_member(
    wants="keep a leader from starting with one nested export in the middle of a list",
    stopped_by="decoding that cuts the text of one object, not the page",
)
def test_a_nested_export_does_not_cost_the_list(cluster: Cluster, tmp_path: Path) -> None:
    """A leader that starts lists everything, the nested export without what is too deep."""
    joined(cluster)
    good(cluster, "aaa")
    created(cluster, with_payload("web", x=MARK), nested(5000))
    good(cluster, "zzz")
    with leading(cluster, tmp_path):
        wait_until(lambda: imported(cluster, "aaa") and imported(cluster, "zzz"), "the imports", timeout=30)


@pytest.mark.real_only
@by_member(
    wants="blind all watchers by a nested object among the events",
    stopped_by="an informer for which a bad event is one object's matter: the watch goes on",
)
def test_a_nested_export_does_not_end_a_watch(cluster: Cluster) -> None:
    """Events after the nested object arrive by the same watch, without another list."""
    with reading(cluster) as (informer, mirror):
        wait_until(lambda: informer.state().connected, "the watch", timeout=20)
        created(cluster, with_payload("web", x=MARK, ports=MARK), nested(4000))
        created(cluster, service("east"))
        wait_until(lambda: "east-default-nginx-service" in mirror.names(), "the event after it", timeout=20)
        assert "mallory-evil-web-service" in mirror.names()
        assert informer.state().restarts["object-nested"] == 1
        assert not [why for why in informer.state().restarts if not why.startswith("object-")]
        assert mirror.lists == 1


def answered(listener: socket.socket, body: bytes) -> socket.socket:
    """Answer the next request with a body that may go on; return the connection."""
    connection, _ = listener.accept()
    connection.recv(65536)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    connection.sendall(head + f"{len(body):x}\r\n".encode() + body + b"\r\n")
    return connection


def listed(kind: Kind, *items: str) -> bytes:
    """Return a list as an API server answers it. Items are JSON."""
    head = f'{{"kind": "{kind}List", "apiVersion": "{KINDS[kind].api_version}"'
    return f'{head}, "metadata": {{"resourceVersion": "5"}}, "items": [{", ".join(items)}]}}'.encode()


@by_user(
    wants="stop the agents with a ServiceExport that holds thousands of nested lists",
    stopped_by="decoding that cuts the text of one object: neither list nor watch is lost",
)
def test_a_nested_service_export_does_not_blind_an_agent() -> None:
    """An agent goes on, by list and by watch, where the CRD of an API server keeps unknown fields."""
    meta = '"metadata": {"name": "NAME", "namespace": "shop", "resourceVersion": "7"}'
    bad = f'{{"kind": "ServiceExport", {meta}, "spec": {nested(5000)}}}'
    plain = f'{{"kind": "ServiceExport", {meta}}}'
    items = (plain.replace("NAME", "one"), bad.replace("NAME", "two"), plain.replace("NAME", "three"))
    added = (f'{{"type": "ADDED", "object": {text}}}\n' for text in (bad, plain))
    store = SnapshotStore(lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = Client(token_kubeconfig(server, b"", "token"))
        source = ApiServerSource(client, store, timing=QUICK)
        source.start([Kind.SERVICE_EXPORT])
        try:
            with answered(listener, listed(Kind.SERVICE_EXPORT, *items)) as connection:
                connection.sendall(b"0\r\n\r\n")
            wait_until(lambda: has_synced(source), "the list", timeout=10)
            events = "".join(
                text.replace("NAME", name) for text, name in zip(added, ("four", "five"), strict=True)
            )
            with answered(listener, events.encode()):
                wait_until(lambda: "shop/five" in store.take().service_exports, "the event after it", timeout=10)
            export_names = {f"shop/{name}" for name in ("one", "two", "three", "four", "five")}
            assert set(store.take().service_exports) == export_names
            assert dead() == []
        finally:
            source.stop()
            client.close()


# --- size ------------------------------------------------------------------------------------------------


@pytest.mark.real_only
@attack(
    Group.QUOTAS,
    Attacker.MEMBER,
    wants="make every list of exports fail by filling pages with exports of a megabyte",
    stopped_by="pages that halve until they fit; an object that does not fit alone is left out and named",
)
def test_large_exports_do_not_keep_anybody_from_listing(cluster: Cluster) -> None:
    """The list is complete but for the one object that is larger than a page may be."""
    for number in range(8):
        created(cluster, with_payload(f"web{number}", x="y" * 200_000))
    created(cluster, with_payload("huge", x="y" * 1_300_000))
    created(cluster, service("east"))
    timing = Timing(list_timeout=20.0, backoff=Backoff(first=0.05, most=0.2), page_bytes=700_000)
    with reading(cluster, timing) as (informer, mirror):
        wait_until(lambda: informer.state().synced, "the list", timeout=30)
        assert mirror.names() == {
            *(f"mallory-evil-web{number}-service" for number in range(8)),
            "east-default-nginx-service",
        }
        assert informer.state().restarts == {"object-too-large": 1}
        assert any("mallory-evil-huge-service has more than 700000 bytes" in text for text in informer._reported)


@pytest.mark.real_only
@attack(
    Group.QUOTAS,
    Attacker.MEMBER,
    wants="fill the leader's memory with megabytes in fields that it does not read",
    stopped_by="keeping only those fields of an export that are read",
)
def test_what_nobody_reads_is_not_held(cluster: Cluster) -> None:
    """Of exports of a megabyte a few hundred bytes are kept."""
    for number in range(4):
        created(cluster, with_payload(f"web{number}", x=["y" * 1000] * 900))
    with reading(cluster) as (informer, mirror):
        wait_until(lambda: informer.state().synced, "the list", timeout=30)
        assert len(mirror.objects) == 4
        assert all(len(json.dumps(as_json(obj))) < 2000 for obj in mirror.objects.values())


@by_user(
    wants="burn processor time with annotations of brackets and quotes that look nested",
    stopped_by="a scan of the text that is linear in its length",
)
def test_walls_of_brackets_cost_little() -> None:
    """Text that only looks deep stays as it is, and quadratic work would take minutes."""
    for wall in ("[" * 200_000, '{"' * 60_000, "\\" * 200_000, '"' * 200_000, '\\"[{' * 50_000):
        text = json.dumps({"a": [wall], "b": {"c": 1}})
        assert decode_noting_cuts(text.encode()) == ({"a": [wall], "b": {"c": 1}}, False)
    assert decode_noting_cuts(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)[1]


@attack(
    Group.QUOTAS,
    Attacker.USER,
    wants="break the gateways' agents with a Service of twenty thousand endpoints",
    stopped_by="256 endpoints of a port, the first ones, by which all gateways choose alike",
)
def test_a_service_of_twenty_thousand_endpoints() -> None:
    """The Service is programmed with what fits into an OpenFlow message, and so is the other one."""
    store = SnapshotStore(lambda: None)
    for kind, obj in (
        (Kind.NODE, agentworld.node() | {"spec": {"podCIDRs": ["10.10.0.0/16"]}}),
        (Kind.GATEWAY, agentworld.gateway()),
        (Kind.CLUSTER_INFO_IMPORT, agentworld.cluster(1)),
    ):
        agentworld.listed(store, kind, [obj])
    agentworld.listed(store, Kind.SERVICE, [_service("huge", 8), _service("web", 9)])
    exports = [agentworld.raw(Kind.SERVICE_EXPORT, name) for name in ("huge", "web")]
    agentworld.listed(store, Kind.SERVICE_EXPORT, exports)
    slices = [_slice("huge", number) for number in range(20)] + [_slice("web", 0, count=1)]
    agentworld.listed(store, Kind.ENDPOINT_SLICE, slices)
    desired = compile_desired(store.take(), Facts(), Config(node_name="a1", cluster_id="home")).desired
    services = {name: fragment for name, fragment in desired.fragments.items() if name.startswith("service/")}
    assert len(services) == 2
    for fragment in services.values():
        groups = [resource for resource in fragment.resources if isinstance(resource, GroupEntry)]
        assert all(1 <= group.body.count("bucket=") <= 256 for group in groups)
        assert groups
    assert [problem.reason for problem in desired.problems] == ["TooManyEndpoints"]


def _service(name: str, last: int) -> RawObject:
    address = f"10.96.0.{last}"
    spec = {"clusterIP": address, "clusterIPs": [address], "ports": [{"name": "http", "port": 80}]}
    return agentworld.raw(Kind.SERVICE, name, spec=spec)


def _slice(service_name: str, number: int, count: int = 1000) -> RawObject:
    endpoint_slice = agentworld.raw(
        Kind.ENDPOINT_SLICE,
        f"{service_name}-{number}",
        addressType="IPv4",
        endpoints=[{"addresses": [f"10.10.{i // 250 + 4 * number}.{i % 250 + 1}"]} for i in range(count)],
        ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
    )
    endpoint_slice["metadata"]["labels"] = {"kubernetes.io/service-name": service_name}
    return endpoint_slice


# --- nonsense --------------------------------------------------------------------------------------------


@pytest.mark.real_only
@by_member(
    wants="break the leader's view of its members with announcements full of nonsense",
    stopped_by="reconcilers for which a bad object is a condition or nothing, never an exception",
)
def test_announcements_with_nonsense(cluster: Cluster, tmp_path: Path) -> None:
    """The other member becomes Ready, and the log holds nothing that a terminal obeys."""
    created(cluster, cluster_set())
    for number, text in enumerate(("", ESCAPES, "x" * 500_000, "\u0430" * 70, "../../etc", "\ud800")):
        bad = announce("mallory") | {"clusterID": text, "leaderClusterID": text}
        bad["metadata"] = {
            "name": f"mallory{number}",
            "annotations": {names.HEARTBEAT_ANNOTATION: text[:1000], "multicluster.antrea.io/x": ESCAPES},
        }
        created(cluster, bad)

    def ready() -> bool:
        path = object_path(Kind.CLUSTER_SET, cluster.namespace, SET)
        status = cluster.client.request("GET", path).get("status") or {}
        return "east" in {cluster_status["clusterID"] for cluster_status in status.get("clusterStatuses") or ()}

    with leading(cluster, tmp_path) as leader:
        created(cluster, announce("east"))
        wait_until(ready, "east to be seen", timeout=30)
        assert all(line.isprintable() for line in leader.log.read_text().splitlines())
        assert len(leader.log.read_bytes()) < 100_000


@pytest.mark.real_only
@by_member(
    wants="take over the terminal of an administrator who lists exports",
    stopped_by="cells that are printable and short, whatever is in the objects",
)
def test_a_table_does_not_obey(cluster: Cluster) -> None:
    """`mcagent get` prints one line for each export, without a control character."""
    created(cluster, with_payload("web") | {"spec": {"clusterID": ESCAPES, "kind": ESCAPES * 50, "name": ESCAPES}})
    created(cluster, service("east"))
    argv = [sys.executable, "-m", "mcagent.cli.main", "get", "resourceexport", "-n", cluster.namespace]
    done = subprocess.run(
        [*argv, "--kubeconfig", str(cluster.server.kubeconfig)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout
    assert all(line.isprintable() for line in lines)
    assert "forged by mallory" in done.stdout


@pytest.mark.parametrize("form", [TextFormatter(times=True), JsonFormatter()], ids=["text", "json"])
@by_member(
    wants="forge a line of the log with what an exception quotes from an object",
    stopped_by="a log whose lines and tracebacks are escaped, and tracebacks indented",
)
def test_a_log_line_cannot_be_forged(form: logging.Formatter) -> None:
    """Neither message nor traceback brings a line of its own, or a character that a terminal obeys."""
    try:
        raise KeyError(ESCAPES)
    except KeyError as error:
        wrapped = RuntimeError(f"of a member: {ESCAPES}")
        wrapped.__cause__ = error
    record = logging.LogRecord(
        "mcagent.x", logging.ERROR, "", 0, "of %s", (ESCAPES,), (RuntimeError, wrapped, None)
    )
    first, *rest = form.format(record).split("\n")
    assert first.isprintable()
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    assert not any(line.startswith("level=error") for line in (first, *rest))


@by_member(
    wants="pass for another cluster with letters that look alike, or digits of another script",
    stopped_by="names and addresses of ASCII letters and digits only",
)
def test_letters_that_look_alike() -> None:
    """A look-alike is no cluster ID, no Service's name and no address."""
    from mcagent.controller.leader.exports.header import read_header
    from mcagent.controller.leader.exports.payloads import read_backends
    from mcagent.model.errors import InputError
    from tests.worlds.memory_objects import typed

    assert read_header(typed(service("east"))).cluster_id == "east"
    for cluster, target in (
        ("еast", "default/nginx"),  # noqa: RUF001 (Cyrillic)
        ("east\u200b", "default/nginx"),
        ("east", "default/ngіnx"),  # noqa: RUF001 (Cyrillic)
        ("EAST", "default/nginx"),
        ("east.", "default/nginx"),
        ("east\n", "default/nginx"),
    ):
        with pytest.raises(InputError):
            read_header(typed(service(cluster, target)))
    strange = ("\uff11\uff10.97.0.1", "10.97.0.1\n", "10.97.0.01", "0x0a.97.0.1", "10.97.1")
    assert read_backends(typed(endpoints("east", strange)), lambda _address: "", 100).count == 0


# --- the webhook -----------------------------------------------------------------------------------------


@pytest.fixture
def hook() -> Iterator[Hook]:
    """Give a webhook that allows everything."""
    hook = Hook({"/validate": lambda _request: ALLOWED})
    hook.use()
    yield hook
    hook.server.close()


def asked(hook: Hook, operation: str = "CREATE", **request: str) -> tuple[int, Any]:
    """Return status and answer of a review. Values of the request are JSON."""
    fields = {"uid": '"u"', "operation": f'"{operation}"', **request}
    inner = ", ".join(f'"{key}": {text}' for key, text in fields.items())
    body = f'{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {{{inner}}}}}'
    return hook.post(body.encode())


@by_member(
    wants="break the webhook with bodies that are nested, or of kinds that are no texts",
    stopped_by="bounded decoding: every body gets an answer, and the next one too",
)
def test_bodies_that_are_nested_or_strange(hook: Hook) -> None:
    """A nested new object is refused in words; deleting one is a question like others; nothing is lost."""
    deep = '{"spec": ' + nested(20_000) + "}"
    status, answer = asked(hook, object=deep)
    assert (status, answer["response"]["allowed"]) == (200, False)
    assert f"nested more than {MAX_DEPTH} deep" in answer["response"]["status"]["message"]
    assert asked(hook, "DELETE", oldObject=deep)[1]["response"]["allowed"]
    assert asked(hook, "UPDATE", object=deep, oldObject=deep)[1]["response"]["allowed"]  # a finalizer goes
    assert not asked(hook, "UPDATE", object=deep, oldObject="{}")[1]["response"]["allowed"]
    for strange in (
        '{"kind": []}',
        '{"kind": {}}',
        '{"kind": {"kind": "ClusterSet"}}',
        nested(5000),
        "7",
        '"\\ud800"',
    ):
        assert asked(hook, kind=strange, name=strange, namespace=strange)[0] == 200
    assert hook.post(b"[" * 500_000)[0] == 400
    assert asked(hook)[1]["response"]["allowed"]


@attack(
    Group.OBJECTS,
    Attacker.POD,
    wants="break the webhook's threads with a Content-Length that is no length",
    stopped_by="a length that is read as digits, and few of them",
)
def test_lengths_that_are_none(hook: Hook) -> None:
    """Each gets an answer that refuses it, in its own connection."""
    for length in ("9" * 5000, "-1", "1e3", "0x10", "\u0661", "+5", " ", "1 1"):
        connection = hook.connect()
        connection.putrequest("POST", "/validate")
        connection.putheader("Content-Length", length.encode())
        connection.endheaders()
        assert 400 <= connection.getresponse().status < 500, length
        connection.close()
    assert asked(hook)[1]["response"]["allowed"]


@attack(
    Group.QUOTAS,
    Attacker.MEMBER,
    wants="fill the webhook's metrics with kinds that it makes up",
    stopped_by="labels from a fixed list; everything else is counted as one",
)
def test_made_up_kinds_are_one_label(hook: Hook) -> None:
    """However many kinds are asked about, there is one more label."""
    for number in range(30):
        asked(hook, kind=f'{{"kind": "Made{number}"}}', name=f'"{number}"')
    assert set(hook.server.counts()) == {("other", "allowed")}


@pytest.fixture
def shipped(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[ControllerRole], Shipped]]:
    """Give a function that applies a role's manifests in the test's namespace; nothing runs."""
    webhooks: list[Shipped] = []

    def apply(role: ControllerRole) -> Shipped:
        webhooks.append(Shipped(cluster, role, tmp_path))
        return webhooks[-1]

    yield apply
    for webhook in webhooks:
        webhook.stack.close()


@pytest.mark.real_only
@by_member(
    wants="keep administrators from deleting the object that keeps the leader's webhook from running",
    stopped_by="matchConditions: only accounts of the Common Area need the webhook to delete; they fail closed",
)
def test_administrators_delete_without_a_leader(
    cluster: Cluster, shipped: Callable[[ControllerRole], Shipped]
) -> None:
    """With no webhook running, everything can be deleted, finalizers included, but not by a member."""
    created(cluster, service("east"))
    export = service("west")
    created(cluster, export)
    created(cluster, announce("east"))
    created(cluster, a_set("set"))
    created(cluster, a_gateway("node-1"))
    leader = shipped(ControllerRole.LEADER)
    east = leader.stack.enter_context(closing(cluster.server.as_token(join(leader, "east"))))
    own = object_path(Kind.RESOURCE_EXPORT, cluster.namespace, "east-default-nginx-service")

    def in_force() -> bool:
        return "failed calling webhook" in leader.write(service("east", "default/other"), east, dryRun="All")

    wait_until(in_force, "the webhook to be asked", timeout=30)
    for method, body in (("DELETE", None), ("PUT", cluster.client.request("GET", own))):
        assert "failed calling webhook" in str(refusal(east, method, own, body))
    for kind, name in (
        (Kind.RESOURCE_EXPORT, "east-default-nginx-service"),
        (Kind.RESOURCE_EXPORT, "west-default-nginx-service"),
        (Kind.MEMBER_CLUSTER_ANNOUNCE, names.announce("east")),
        (Kind.CLUSTER_SET, "set"),
        (Kind.GATEWAY, "node-1"),
    ):
        path = object_path(kind, cluster.namespace, name)
        cluster.client.request("DELETE", path)
        if kind is Kind.RESOURCE_EXPORT:
            leader.change(kind, name, {"metadata": {"finalizers": None}})
        assert refusal(cluster.client, "GET", path) is not None, name


# --- what nobody thought of ------------------------------------------------------------------------------


@by_member(
    wants="leave an agent or a controller that looks healthy and sees nothing any more",
    stopped_by="supervised threads: they begin anew, and /healthz fails for those that cannot",
)
def test_a_reader_that_breaks_begins_anew(tmp_path: Path) -> None:
    """A bug that an object hits ends nothing for good: everything is listed again, and told meanwhile."""

    class Fragile(Mirror):
        def apply(self, kind: Kind, event: WatchEvent) -> None:
            if event.key.endswith("poison"):
                raise RuntimeError(event.key)
            super().apply(kind, event)

    mirror = Fragile()
    with ApiServer(bookmark_interval=0.1) as api:
        api.write_kubeconfig(tmp_path / "kubeconfig")
        client = Client(str(tmp_path / "kubeconfig"))
        informer = Informer(Kind.GATEWAY, client, mirror, timing=QUICK)
        informer.start()
        try:
            wait_until(lambda: informer.state().connected, "the watch", timeout=20)
            put(api, Kind.GATEWAY, "poison")
            wait_until(lambda: "RuntimeError" in informer.state().error, "the break to be told", timeout=20)
            assert not informer.state().connected
            put(api, Kind.GATEWAY, "after")
            wait_until(lambda: mirror.names() == {"poison", "after"}, "another list", timeout=20)
            assert mirror.lists == 2
        finally:
            informer.stop()
            client.close()


@by_member(
    wants="hold an informer of a leader's API server with an endless line, or a stream of nonsense",
    stopped_by="limits of a line and of bad lines: a line is passed over, and a list follows",
)
def test_lines_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a line that is too long or no JSON is read by the same watch."""
    monkeypatch.setattr("mcagent.kube.stream.MAX_LINE", 300_000)
    meta = {"name": "after", "namespace": "x", "resourceVersion": "7"}
    event = json.dumps({"type": "ADDED", "object": {"kind": "Gateway", "metadata": meta}}).encode()
    long = b'{"x": "' + b"y" * 1_000_000 + b'"}'
    bad = (long, b"{", b"\xff\x00", b"[" * 5000, b'{"type": []}', b"null", b"[NaN]")
    mirror = Mirror()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(token_kubeconfig(f"http://127.0.0.1:{listener.getsockname()[1]}", b"", "token"))
        informer = Informer(Kind.GATEWAY, client, mirror, namespace="x", timing=QUICK)
        informer.start()
        try:
            with answered(listener, listed(Kind.GATEWAY)) as connection:
                connection.sendall(b"0\r\n\r\n")
            with answered(listener, b"\n".join((*bad, event, b""))):
                wait_until(lambda: mirror.names() == {"after"}, "the event after them", timeout=20)
            assert informer.state().restarts["bad-line"] == len(bad)
            with listener.accept()[0] as connection:  # what the lines told is not known: everything is listed
                assert re.match(rb"GET \S+gateways\?limit=", connection.recv(65536))
        finally:
            informer.signal_stop()
            client.close()
            informer.stop()
