"""The member's controller renews its token of the leader: the Secret changes, and the connection does not."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.apiserver import ApiServer
from devtools.apiserver.faults import Fault, FaultKind
from mcagent.controller.contract.member_tokens import anchor_name, claims_of, token_request
from mcagent.controller.machinery.engine import Engine
from mcagent.controller.machinery.reconciler import Leader, Side
from mcagent.model.objects import Kind
from tests.embedded.controlworld import (
    COMMON_AREA,
    NAMESPACE,
    QUICK,
    Copier,
    Objects,
    client_of,
    copies,
    export,
    join,
)
from tests.waiting import until

ANCHOR = anchor_name("east", 3600, "a" * 20)


class SeenEngine(Engine):
    """An engine that keeps how the connection was."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.leaders: list[Leader | None] = []
        super().__init__(*arguments, **more)

    def _leader_changed(self, old: Leader | None, new: Leader | None) -> None:
        self.leaders.append(new)
        super()._leader_changed(old, new)


@pytest.fixture
def leader_api() -> Iterator[ApiServer]:
    """Give the API server of the leader, with the member's account and its anchor."""
    with ApiServer(bookmark_interval=0.1, tokens=frozenset({"secret"})) as server:
        remote = Objects(server)
        remote.put(Kind.SERVICE_ACCOUNT, "east", COMMON_AREA)
        remote.put(Kind.SECRET, ANCHOR, COMMON_AREA)
        yield server


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Objects]:
    """Give the objects of the member's cluster."""
    with ApiServer(bookmark_interval=0.1) as server:
        yield Objects(server)


@pytest.fixture
def run(local: Objects, tmp_path: Path) -> Iterator[Callable[..., SeenEngine]]:
    """Give a function that starts an engine; it is stopped at the end."""
    engines: list[SeenEngine] = []

    def start(**arguments: Any) -> SeenEngine:
        client = client_of(local.api, tmp_path)
        engine = SeenEngine(
            [Copier(Side.LEADER)], client, namespace=NAMESPACE, member=True, timing=QUICK, **arguments
        )
        engines.append(engine)
        engine.start()
        return engine

    yield start
    for engine in engines:
        assert engine.stop()
        assert not engine.dead()


def token_of(leader_api: ApiServer, seconds: int, anchor: str = ANCHOR) -> str:
    """Return a token of the member's account."""
    request = token_request(anchor, seconds)
    return str(leader_api.accounts.request(COMMON_AREA, "east", request)["status"]["token"])


def stored(local: Objects) -> str:
    """Return the token in the member's Secret."""
    return base64.b64decode(local.get(Kind.SECRET, "leader-token")["data"]["token"]).decode()


def requests_for_tokens(leader_api: ApiServer) -> int:
    """Return how many tokens were requested."""
    return sum(verb == "create" and path.endswith("/token") for _, verb, path in list(leader_api.requests))


def reads(leader_api: ApiServer) -> tuple[int, int]:
    """Return how many lists and how many watches were begun, but for probes."""
    verbs = [verb for _, verb, path in list(leader_api.requests) if "limit=1&" not in path]
    return verbs.count("list"), verbs.count("watch")


def is_watching(leader_api: ApiServer) -> bool:
    """Tell whether a watch was begun after each list: `synced` says that the lists have ended."""
    lists, watches = reads(leader_api)
    return lists == watches > 0


def test_a_token_is_renewed_and_the_connection_stays(
    local: Objects, leader_api: ApiServer, run: Callable[..., SeenEngine]
) -> None:
    """The Secret has a token of the full life, no list or watch begins anew, and writes use the new token."""
    first = token_of(leader_api, 9)
    claims = claims_of(first)
    assert claims is not None
    join(local, leader_api.url, token=first)
    engine = run()
    export(local, "a", "one")
    until(lambda: copies(Objects(leader_api)) == {"a": "one"} and engine.idle())
    until(lambda: engine.view.leader is not None and engine.view.leader.synced and is_watching(leader_api))
    assert stored(local) == first
    before, leaders = reads(leader_api), len(engine.leaders)
    until(lambda: stored(local) != first, timeout=20)
    renewed = claims_of(stored(local))
    assert renewed is not None
    assert (renewed.expires - renewed.issued, renewed.anchor) == (3600, ANCHOR)
    until(lambda: engine.view.leader is not None and engine.view.leader.token == renewed)
    until(lambda: time.time() > claims.expires + 0.5, timeout=20)
    export(local, "b", "two")
    until(lambda: copies(Objects(leader_api)) == {"a": "one", "b": "two"})
    assert reads(leader_api) == before
    assert all(leader is not None and leader.connected and leader.synced for leader in engine.leaders[leaders:])
    assert requests_for_tokens(leader_api) == 1
    assert len(local.writes("/secrets/")) == 1


@pytest.mark.parametrize("kind", ["static", "another Secret"])
def test_other_tokens_are_never_written(
    local: Objects, leader_api: ApiServer, run: Callable[..., SeenEngine], kind: str
) -> None:
    """Neither one that Kubernetes filled in, as for Antrea's members, nor one with another bound object."""
    Objects(leader_api).put(Kind.SECRET, "other", COMMON_AREA)
    static = leader_api.accounts.issue(COMMON_AREA, "east")
    token = static if kind == "static" else token_of(leader_api, 3600, "other")
    join(local, leader_api.url, token=token)
    engine = run(clock=lambda: time.time() + 3500)
    export(local, "a", "one")
    until(lambda: copies(Objects(leader_api)) == {"a": "one"} and engine.idle())
    leader = engine.view.leader
    assert leader is not None
    assert (leader.token is None) is (kind == "static")
    assert requests_for_tokens(leader_api) == 0
    assert local.writes("/secrets/") == []


def test_a_replica_without_the_lease_does_not_renew(
    local: Objects, leader_api: ApiServer, run: Callable[..., SeenEngine]
) -> None:
    """Until it gets the Lease."""
    permitted = [0.0]
    first = token_of(leader_api, 3600)
    join(local, leader_api.url, token=first)
    engine = run(clock=lambda: time.time() + 3000, permit=lambda: permitted[0])
    until(lambda: engine.view.leader is not None and engine.view.leader.synced)
    looks = len(leader_api.requests)
    until(lambda: len(leader_api.requests) > looks + 3)  # probes: a second or more
    assert (requests_for_tokens(leader_api), stored(local)) == (0, first)
    permitted[0] = 60.0
    until(lambda: stored(local) != first)


def test_a_refused_renewal_is_reported_and_not_repeated_at_once(
    local: Objects, leader_api: ApiServer, run: Callable[..., SeenEngine], caplog: pytest.LogCaptureFixture
) -> None:
    """The leader stays connected, the reason is in its state, and the token is in no message."""
    caplog.set_level("DEBUG")
    first = token_of(leader_api, 3600)
    leader_api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("create",)))
    join(local, leader_api.url, token=first)
    engine = run(clock=lambda: time.time() + 3000)
    until(lambda: engine.view.leader is not None and bool(engine.view.leader.token_error))
    looks = len(leader_api.requests)
    until(lambda: len(leader_api.requests) > looks + 5)
    leader = engine.view.leader
    assert leader is not None
    assert leader.connected
    assert requests_for_tokens(leader_api) == 1
    assert stored(local) == first
    assert first not in caplog.text + leader.token_error + repr(leader)


def test_who_replaces_the_token_meanwhile_wins(
    local: Objects, leader_api: ApiServer, run: Callable[..., SeenEngine]
) -> None:
    """The Secret that an administrator applied during the request is not written over."""
    join(local, leader_api.url, token=token_of(leader_api, 3600))
    leader_api.faults.add(Fault(kind=FaultKind.SLOW, delay=2.0, verbs=("create",)))
    engine = run(clock=lambda: time.time() + 3000)
    until(lambda: requests_for_tokens(leader_api) == 1)
    join(local, leader_api.url, token="secret")
    until(lambda: engine.view.leader is not None and engine.view.leader.token is None)
    until(lambda: bool(local.writes("/secrets/")))
    assert stored(local) == "secret"
    until(lambda: engine.view.leader is not None and engine.view.leader.connected)
