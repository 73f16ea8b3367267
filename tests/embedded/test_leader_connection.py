"""A member's connection to its leader, turn by turn: what it follows, when it asks, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from devtools.apiserver import ApiServer, Fault, FaultKind
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.connection.connection import AwayError, ConnectionTiming, LeaderConnection
from mcagent.controller.machinery.connection.secret import SecretWatch
from mcagent.controller.machinery.reconciler import Leader, Side
from mcagent.kube.errors import ApiGarbageError, ApiRefusalError, ApiUnreachableError
from mcagent.model.api.multicluster import ResourceExport
from mcagent.model.backoff import Backoff
from mcagent.model.objects import Kind
from tests.embedded.controlworld import COMMON_AREA, INFORMERS, NAMESPACE, Objects, client_of, join
from tests.waiting import until
from tests.worlds.memory_objects import typed

TIMING = ConnectionTiming(
    probe_after=3600.0, probe_timeout=2.0, retry=Backoff(first=0.001, most=0.001), look=0.25, informers=INFORMERS
)


class TurnByTurn(LeaderConnection):
    """A connection whose turns a test makes. `now` is the time that it reports."""

    def __init__(self, local: ApiServer, path: Path, timing: ConnectionTiming = TIMING) -> None:
        self.now = 1000.0
        self.changes: list[tuple[Leader | None, Leader | None]] = []
        kinds = {
            Side.LOCAL: [Kind.CLUSTER_SET, Kind.CLUSTER_CLAIM],
            Side.LEADER: [Kind.RESOURCE_IMPORT, Kind.RESOURCE_EXPORT],
        }
        self.objects, self.cache = Objects(local), Cache(kinds)
        super().__init__(
            client_of(local, path),
            self.cache,
            NAMESPACE,
            lambda old, new: self.changes.append((old, new)),
            timing=timing,
            clock=lambda: self.now,
        )

    def turn(self) -> float:
        """Read ClusterSet and claims again, and do what the thread does when it is woken."""
        for kind in (Kind.CLUSTER_CLAIM, Kind.CLUSTER_SET):
            self.cache.replace(
                Side.LOCAL, kind, [typed(raw, kind) for raw in self.objects.listed(kind, NAMESPACE)]
            )
        return self._check()

    def until(self, condition: Callable[[], object]) -> None:
        """Make turns until a condition holds."""

        def holds() -> bool:
            self.turn()
            return bool(condition())

        until(holds)

    @property
    def membership(self) -> Leader:
        """The leader, of which something is known."""
        assert self.leader is not None
        return self.leader

    @property
    def secret_name(self) -> str:
        """The name of the Secret as it was read; "": there is none."""
        return self._secret.secret.name if self._secret.secret is not None else ""

    def connect(self, leader_api: ApiServer) -> None:
        """Join a leader, and wait until all is listed."""
        join(self.objects, leader_api.url)
        self.until(lambda: self.leader is not None and self.leader.connected and self.leader.synced)


@pytest.fixture
def local() -> Iterator[ApiServer]:
    """Give the member's API server."""
    with ApiServer(bookmark_interval=0.1) as server:
        yield server


@pytest.fixture
def leader_api() -> Iterator[ApiServer]:
    """Give the leader's API server."""
    with ApiServer(bookmark_interval=0.1, tokens=frozenset({"secret"})) as server:
        yield server


@pytest.fixture
def connection(local: ApiServer, tmp_path: Path) -> Iterator[TurnByTurn]:
    """Give a connection that follows the objects of the member's API server."""
    connection = TurnByTurn(local, tmp_path)
    yield connection
    connection.stop()


def probes(leader_api: ApiServer) -> int:
    """Return how many probes there were."""
    return sum("limit=1&" in path for _, _, path in list(leader_api.requests))


def test_a_connection_reports_each_change_from_the_one_before(
    connection: TurnByTurn, leader_api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """From no membership to one that is connected and listed; what it is about comes from the ClusterSet."""
    caplog.set_level("INFO")
    assert connection.turn() == 0.25
    assert (connection.leader, connection.changes, connection.epoch) == (None, [], 0)
    connection.connect(leader_api)
    assert connection.membership == Leader(
        cluster_set="set",
        cluster_id="east",
        leader_cluster_id="north",
        namespace=COMMON_AREA,
        addresses=("127.0.0.1",),
        connected=True,
        synced=True,
        since=1000.0,
    )
    assert connection.changes[0][0] is None
    assert connection.changes[-1][1] == connection.membership
    assert [new for _, new in connection.changes[:-1]] == [old for old, _ in connection.changes[1:]]
    assert connection.epoch == 1
    assert f"ClusterSet set: leader north at {leader_api.url}" in caplog.messages
    assert "ClusterSet set: connected to the leader" in caplog.messages
    count = len(connection.changes)
    connection.now = 2000.0
    connection.turn()
    assert len(connection.changes) == count
    assert [state.kind for state in connection.state()] == [Kind.RESOURCE_EXPORT, Kind.RESOURCE_IMPORT]
    connection.client(1).request("GET", "/version")


def test_nothing_is_followed_before_cluster_sets_and_claims_are_listed(
    local: ApiServer, tmp_path: Path, leader_api: ApiServer
) -> None:
    """An upgraded ClusterSet has its ID in a claim: without the list it would be refused."""
    connection = TurnByTurn(local, tmp_path)
    join(connection.objects, leader_api.url, cluster_id="")
    connection.objects.put(Kind.CLUSTER_CLAIM, "id.k8s.io", value="old-east")
    raw = connection.objects.get(Kind.CLUSTER_SET, "set")
    connection.cache.replace(Side.LOCAL, Kind.CLUSTER_SET, [typed(raw, Kind.CLUSTER_SET)])
    connection._check()
    assert connection.leader is None
    connection.until(lambda: connection.leader is not None)
    assert connection.membership.cluster_id == "old-east"
    connection.stop()


def test_a_member_reads_its_own_exports_and_all_imports(connection: TurnByTurn, leader_api: ApiServer) -> None:
    """What all the others export would be too much."""
    remote = Objects(leader_api)
    for name, cluster_id in (("own", "east"), ("other", "west")):
        labels = {"labels": {"sourceClusterID": cluster_id}}
        remote.put(Kind.RESOURCE_EXPORT, name, COMMON_AREA, metadata=labels, spec={})
        remote.put(Kind.RESOURCE_IMPORT, name, COMMON_AREA, metadata=labels, spec={})
    connection.connect(leader_api)
    exports = connection.cache.list(ResourceExport, Side.LEADER)
    assert [export.name for export in exports] == ["own"]
    assert connection.cache.count(Side.LEADER, Kind.RESOURCE_IMPORT) == 2


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ApiUnreachableError("no answer in time"), "no answer in time"),
        (ApiGarbageError("the answer is not JSON"), "the answer is not JSON"),
        (ApiRefusalError("the credentials were refused", code=401), "the credentials were refused"),
        (ApiRefusalError("not allowed", code=403), ""),
        (ApiRefusalError("conflict", code=409), ""),
        (None, ""),
    ],
)
def test_a_request_that_fails_ends_the_connection_unless_one_object_was_refused(
    connection: TurnByTurn,
    leader_api: ApiServer,
    error: Any,
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At once; the next probe that succeeds mends it, and the informers go on."""
    connection.connect(leader_api)
    connection.now = 2000.0
    connection.request_ended(error)
    membership = connection.membership
    if not text:
        assert (membership.connected, membership.error, membership.since) == (True, "", 1000.0)
        return
    assert (membership.connected, membership.error, membership.since) == (False, text, 2000.0)
    assert f"ClusterSet set: the leader is away: {text}" in caplog.messages
    with pytest.raises(AwayError, match=f"^the leader is away: {text}$"):
        connection.client(1)
    connection.now = 3000.0
    count = probes(leader_api)
    connection.turn()
    assert probes(leader_api) == count + 1
    assert (connection.membership.connected, connection.membership.error, connection.membership.since) == (
        True,
        "",
        3000.0,
    )
    assert connection.epoch == 1


def test_a_client_of_an_earlier_leader_is_not_given(connection: TurnByTurn, leader_api: ApiServer) -> None:
    """What was decided for one leader is not written to the next; without a leader nothing is written."""
    with pytest.raises(AwayError, match=r"^the leader is away$"):
        connection.client(0)
    connection.connect(leader_api)
    with pytest.raises(AwayError, match=r"^the ClusterSet has another leader now$"):
        connection.client(0)


def test_a_connected_leader_is_asked_only_when_it_was_quiet(
    local: ApiServer, tmp_path: Path, leader_api: ApiServer
) -> None:
    """Requests that succeed take the place of probes."""
    connection = TurnByTurn(local, tmp_path)
    connection.connect(leader_api)
    count = probes(leader_api)
    for _ in range(3):
        connection.turn()
    assert probes(leader_api) == count
    connection.stop()
    connection = TurnByTurn(local, tmp_path, replace(TIMING, probe_after=0.0))
    connection.connect(leader_api)
    count = probes(leader_api)
    connection.turn()
    assert probes(leader_api) == count + 1
    connection.stop()


def test_a_leader_that_is_away_is_asked_less_and_less_often(
    local: ApiServer, tmp_path: Path, leader_api: ApiServer
) -> None:
    """Not at each turn; other credentials are tried at once."""
    retry = Backoff(first=3600.0, most=3600.0, jitter=0.0)
    connection = TurnByTurn(local, tmp_path, replace(TIMING, retry=retry))
    leader_api.tokens = frozenset({"secret", "fresh"})
    leader_api.faults.add(Fault(kind=FaultKind.STATUS, code=500, verbs=("list",), path="imports"))
    join(connection.objects, leader_api.url)
    connection.until(lambda: probes(leader_api) == 1)
    connection.turn()
    assert probes(leader_api) == 1
    leader_api.faults.clear()
    join(connection.objects, leader_api.url, token="fresh")
    connection.until(lambda: connection.membership.connected)
    assert probes(leader_api) == 2
    connection.stop()


def test_an_answer_that_is_no_list_is_no_connection(connection: TurnByTurn, leader_api: ApiServer) -> None:
    """Something else answers at the leader's address."""
    leader_api.faults.add(Fault(kind=FaultKind.GARBAGE, body='{"kind": "Status"}'))
    join(connection.objects, leader_api.url)
    text = f"{leader_api.url}: the answer is no ResourceImportList"
    connection.until(lambda: connection.leader is not None and connection.leader.error == text)
    assert not connection.membership.connected


def test_a_member_that_leaves_forgets_the_leader(connection: TurnByTurn, leader_api: ApiServer) -> None:
    """Its objects are gone with it, and the last change says so."""
    remote = Objects(leader_api)
    remote.put(Kind.RESOURCE_IMPORT, "i", COMMON_AREA, spec={})
    connection.connect(leader_api)
    assert connection.cache.count(Side.LEADER, Kind.RESOURCE_IMPORT) == 1
    membership = connection.membership
    connection.objects.remove(Kind.CLUSTER_SET, "set")
    connection.turn()
    assert connection.changes[-1] == (membership, None)
    assert (connection.leader, connection.epoch, list(connection.state())) == (None, 2, [])
    assert connection.cache.count(Side.LEADER, Kind.RESOURCE_IMPORT) == 0
    assert not connection.cache.synced(Side.LEADER)


def test_another_leader_is_another_epoch_and_another_secret_is_not(
    connection: TurnByTurn, leader_api: ApiServer
) -> None:
    """A leader changes by its server, namespace or ID, and by a ClusterSet that was created again."""
    connection.connect(leader_api)
    connection.objects.put(Kind.SECRET, "second", data=connection.objects.get(Kind.SECRET, "leader-token")["data"])

    def change(**fields: Any) -> None:
        def changed(raw: Any) -> Any:
            leader = {**raw["spec"]["leaders"][0], **fields}
            return {**raw, "spec": {**raw["spec"], "leaders": [leader]}}

        connection.objects.change(Kind.CLUSTER_SET, "set", changed)

    change(secret="second")
    connection.until(lambda: connection.secret_name == "second")
    connection.turn()
    assert connection.epoch == 1
    assert connection.membership.connected
    change(secret="second", clusterID="south")
    connection.turn()
    assert connection.epoch == 2
    connection.until(lambda: connection.leader is not None and connection.leader.connected)
    assert connection.membership.leader_cluster_id == "south"
    assert any(new is None for _, new in connection.changes)


def test_a_cluster_set_that_cannot_be_used_is_logged_once(
    connection: TurnByTurn, leader_api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it is right, or wrong in another way."""
    connection.connect(leader_api)
    text = "ClusterSet kube-system/set: spec.clusterID: must be this cluster's ID"
    wrong = connection.objects.get(Kind.CLUSTER_SET, "set")
    connection.objects.put(Kind.CLUSTER_SET, "set", spec={**wrong["spec"], "clusterID": "East"})
    for _ in range(3):
        connection.turn()
    assert connection.leader is None
    assert caplog.text.count(text) == 1
    connection.objects.put(Kind.CLUSTER_SET, "set", spec=wrong["spec"])
    connection.until(lambda: connection.leader is not None and connection.leader.connected)
    connection.objects.put(Kind.CLUSTER_SET, "set", spec={**wrong["spec"], "clusterID": "East"})
    connection.turn()
    assert caplog.text.count(text) == 2


def test_a_secret_that_is_missing_or_cannot_be_read_is_reported(
    connection: TurnByTurn, local: ApiServer, leader_api: ApiServer
) -> None:
    """With the command that grants the right; the connection begins when the Secret can be read."""
    local.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("list",), path="secrets"))
    join(connection.objects, leader_api.url)
    connection.until(lambda: connection.leader is not None and connection.leader.error)
    error = connection.membership.error
    assert error.startswith(f"Secret {NAMESPACE}/leader-token cannot be read: ")
    assert f". If its Role is missing: kubectl -n {NAMESPACE} create role " in error
    assert not connection.membership.connected
    secret = connection.objects.get(Kind.SECRET, "leader-token")
    connection.objects.remove(Kind.SECRET, "leader-token")
    local.faults.clear()
    text = f"Secret {NAMESPACE}/leader-token: does not exist: it must hold ca.crt and token"
    connection.until(lambda: connection.membership.error == text)
    connection.objects.put(Kind.SECRET, "leader-token", data=secret["data"])
    connection.until(lambda: connection.membership.connected)
    assert connection.membership.error == ""


def test_a_member_that_leaves_may_delete_its_secret_first(connection: TurnByTurn, leader_api: ApiServer) -> None:
    """It has to withdraw its exports with the credentials that it had; others lose the connection."""
    connection.connect(leader_api)
    connection.objects.remove(Kind.SECRET, "leader-token")
    connection.until(lambda: "does not exist" in connection.membership.error)
    assert not connection.membership.connected
    connection.connect(leader_api)
    hold = {"finalizers": ["example.org/hold"]}
    connection.objects.change(
        Kind.CLUSTER_SET, "set", lambda raw: {**raw, "metadata": {**raw["metadata"], **hold}}
    )
    connection.objects.remove(Kind.CLUSTER_SET, "set")
    connection.turn()
    connection.objects.remove(Kind.SECRET, "leader-token")
    until(lambda: connection.secret_name == "")
    for _ in range(3):
        connection.turn()
    assert connection.membership.connected
    connection.client(connection.epoch).request("GET", f"/api/v1/namespaces/{COMMON_AREA}/configmaps")


def test_other_credentials_are_used_without_new_informers(connection: TurnByTurn, leader_api: ApiServer) -> None:
    """While the leader is connected."""
    leader_api.tokens = frozenset({"secret", "fresh"})
    connection.connect(leader_api)
    until(lambda: sum(verb == "watch" for _, verb, _ in list(leader_api.requests)) == 2)
    leader_api.requests.clear()
    count = len(connection.changes)
    join(connection.objects, leader_api.url, token="fresh")
    connection.until(lambda: probes(leader_api) == 1)  # with the new token
    leader_api.tokens = frozenset({"fresh"})
    connection.client(1).request("GET", f"/api/v1/namespaces/{COMMON_AREA}/configmaps")
    assert not [
        verb
        for _, verb, path in list(leader_api.requests)
        if verb in ("watch", "list") and "limit=1&" not in path and "configmaps" not in path
    ]
    assert all(new is not None and new.connected for _, new in connection.changes[count:])


def test_a_connection_that_ends_delivers_nothing_more(connection: TurnByTurn, leader_api: ApiServer) -> None:
    """What was read stays, and no client is given."""
    remote = Objects(leader_api)
    remote.put(Kind.RESOURCE_IMPORT, "i", COMMON_AREA, spec={})
    connection.connect(leader_api)
    connection.stop()
    assert list(connection.state()) == []
    assert connection.cache.count(Side.LEADER, Kind.RESOURCE_IMPORT) == 1
    with pytest.raises(AwayError):
        connection.client(1)


@pytest.fixture
def watch(local: ApiServer, tmp_path: Path) -> Iterator[tuple[SecretWatch, SimpleQueue[str]]]:
    """Give a watch of Secrets, and its reports of changes; it is stopped at the end."""
    reports = SimpleQueue[str]()
    watch = SecretWatch(client_of(local, tmp_path), NAMESPACE, lambda: reports.put("changed"), INFORMERS)
    yield watch, reports
    watch.stop()


def test_a_secret_is_followed_by_its_name(local: ApiServer, watch: tuple[SecretWatch, SimpleQueue[str]]) -> None:
    """The list and watch of one name; each change is reported, and another name is another Secret."""
    objects, (secrets, reports) = Objects(local), watch
    assert (secrets.secret, secrets.error) == (None, "")
    secrets.knows("a")
    reports.get(timeout=30)
    assert secrets.knows("a")
    assert secrets.secret is None
    for name in ("b", "a"):
        objects.put(Kind.SECRET, name, data={"token": "MQ=="})
    reports.get(timeout=30)
    assert secrets.secret is not None
    assert (secrets.secret.name, secrets.secret.data) == ("a", {"token": "MQ=="})
    objects.put(Kind.SECRET, "a", data={"token": "Mg=="})
    reports.get(timeout=30)
    assert secrets.secret.data == {"token": "Mg=="}
    objects.remove(Kind.SECRET, "a")
    reports.get(timeout=30)
    assert secrets.secret is None
    assert reports.empty()
    assert all("fieldSelector=metadata.name%3Da" in path for _, _, path in list(local.requests))
    secrets.knows("b")
    reports.get(timeout=30)
    assert secrets.knows("b")
    assert secrets.secret is not None
    assert secrets.secret.name == "b"
    secrets.stop()
    assert (secrets.secret, secrets.error) == (None, "")


def test_a_secret_that_cannot_be_read_has_an_error(
    local: ApiServer, watch: tuple[SecretWatch, SimpleQueue[str]]
) -> None:
    """Until it could be read once: afterwards the last content is known."""
    local.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("list",)))
    secrets, _ = watch
    secrets.knows("a")
    until(lambda: "not allowed" in secrets.error)
    assert not secrets.knows("a")
    local.faults.clear()
    until(lambda: secrets.knows("a"))
    assert secrets.error == ""
