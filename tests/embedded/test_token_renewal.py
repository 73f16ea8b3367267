"""The member's controller renews its token of the leader: the Secret changes, and the connection does not."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devtools.apiserver import ApiServer
from devtools.apiserver.faults import Fault, FaultKind
from mcagent.controller.contract.member_tokens import anchor_name, claims_of, token_request
from mcagent.controller.machinery.connection.renewal import RenewalTiming, TokenRenewal
from mcagent.controller.machinery.engine import Engine
from mcagent.controller.machinery.reconciler import Leader, Side
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.model.backoff import Backoff
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


class StepByStep:
    """A renewal whose steps a test makes. `now`: of the clock of tokens; `steady`: of the one that never steps."""

    def __init__(self, local: Objects, leader_api: ApiServer, path: Path, patching: pytest.MonkeyPatch) -> None:
        self.local, self.leader_api = local, leader_api
        self.now, self.steady, self.permit = time.time(), 100.0, 1.0
        module = "mcagent.controller.machinery.connection.renewal"
        patching.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: self.steady))
        patching.setattr(f"{module}.random", SimpleNamespace(random=lambda: 0.0))
        self.client = Client(token_kubeconfig(leader_api.url, b"", "secret"))
        timing = RenewalTiming(retry=Backoff(first=60.0, most=3600.0), timeout=5.0)
        self.renewal = TokenRenewal(
            client_of(local.api, path), NAMESPACE, lambda: self.permit, lambda: self.now, timing
        )

    def use(self, token: str) -> None:
        """Have this token in the member's Secret, and in use."""
        join(self.local, self.leader_api.url, token=token)
        self.renewal.use(token)

    def step(self, after: float = 0.0) -> int:
        """Do a step after so many seconds; return how many tokens were requested so far."""
        self.steady += after
        self.renewal.step(self.client, "leader-token")
        return requests_for_tokens(self.leader_api)

    @property
    def error(self) -> str:
        """Why the last attempt failed."""
        return self.renewal.error


@pytest.fixture
def steps(local: Objects, leader_api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StepByStep:
    """Give a renewal without a token."""
    return StepByStep(local, leader_api, tmp_path, monkeypatch)


def test_a_token_is_renewed_after_two_thirds_of_its_life_and_not_after_its_end(
    steps: StepByStep, leader_api: ApiServer
) -> None:
    """By the replica that may write."""
    assert steps.step() == 0
    steps.use(token_of(leader_api, 3600))
    claims = steps.renewal.claims
    assert claims is not None
    steps.now = claims.expires
    assert steps.step() == 0
    steps.now = claims.renewal - 1
    assert steps.step() == 0
    steps.now, steps.permit = claims.renewal, 0.0
    assert steps.step() == 0
    steps.permit = 1.0
    assert steps.step() == 1
    assert steps.error == ""


def test_a_renewal_changes_the_token_of_the_secret_only(
    steps: StepByStep, local: Objects, leader_api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Certificate, labels and other keys stay; it is logged without the token."""
    caplog.set_level("INFO")
    first = token_of(leader_api, 3000)
    steps.use(first)
    before = local.get(Kind.SECRET, "leader-token")
    added = {**before, "metadata": {**before["metadata"], "labels": {"a": "1"}}}
    added["data"] = {**before["data"], "other": "eA=="}
    local.change(Kind.SECRET, "leader-token", lambda _old: added)
    steps.now += 2500
    assert steps.step() == 1
    after = local.get(Kind.SECRET, "leader-token")
    renewed = stored(local)
    assert renewed != first
    assert after["data"] == {**added["data"], "token": base64.b64encode(renewed.encode()).decode()}
    assert after["metadata"]["labels"] == {"a": "1"}
    claims = claims_of(renewed)
    assert claims is not None
    assert (claims.anchor, claims.account, claims.expires - claims.issued) == (ANCHOR, "east", 3600)
    assert f"the token of the leader is renewed: Secret {NAMESPACE}/leader-token" in caplog.messages
    assert renewed not in caplog.text


@pytest.mark.parametrize(("life", "pause"), [(3600, 1200.0), (90, 60.0)])
def test_a_token_that_always_looks_due_is_renewed_once_in_a_third_of_its_life(
    steps: StepByStep, leader_api: ApiServer, life: int, pause: float
) -> None:
    """As with a clock that is ahead of the leader's; of a short token at most once a minute."""
    steps.use(token_of(leader_api, life))
    steps.now += 0.9 * life
    assert steps.step() == 1
    steps.use(token_of(leader_api, life + 1))
    assert steps.step(after=pause - 1) == 1
    assert steps.step(after=1.0) == 2


def test_a_refused_renewal_is_repeated_less_and_less_often(
    steps: StepByStep, leader_api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """After one minute, two, four; the reason is reported until a renewal succeeds."""
    leader_api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("create",)))
    first = token_of(leader_api, 3600)
    steps.use(first)
    steps.now += 3000
    for count, pause in enumerate((60.0, 120.0, 240.0), start=1):
        assert steps.step() == count
        assert "not allowed" in steps.error
        assert "kubectl" not in steps.error  # the right is the leader's to give
        assert f"the token of the leader is not renewed: {steps.error}" in caplog.messages
        assert steps.step(after=pause - 1) == count
        steps.steady += 1
        steps.renewal.use(first)
        assert steps.error != ""
    leader_api.faults.clear()
    assert steps.step() == 4
    assert steps.error == ""


def test_failures_of_one_token_do_not_hold_up_the_renewal_of_the_next(
    steps: StepByStep, leader_api: ApiServer
) -> None:
    """After a day of failures an administrator replaces the token by one of ten minutes: it must not expire."""
    leader_api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("create",)))
    steps.use(token_of(leader_api, 3600))
    steps.now += 3000
    for count in range(1, 9):
        assert steps.step(after=3600.0) == count
    steps.use(token_of(leader_api, 600))
    assert steps.error == ""
    steps.now = time.time() + 500
    assert steps.step(after=500.0) == 9
    assert steps.step(after=60.0) == 10  # nor do they count


def test_a_controller_that_may_not_write_its_secret_reports_the_command(
    steps: StepByStep, local: Objects, leader_api: ApiServer
) -> None:
    """The Role of an earlier version lacks the right."""
    local.api.faults.add(Fault(kind=FaultKind.STATUS, code=403, verbs=("update",)))
    first = token_of(leader_api, 3600)
    steps.use(first)
    steps.now += 3000
    steps.step()
    assert steps.error.startswith(f"{local.api.url}: PUT ")
    assert f": kubectl -n {NAMESPACE} patch role " in steps.error
    assert stored(local) == first
    local.api.faults.clear()
    local.api.faults.add(Fault(kind=FaultKind.STATUS, code=500, verbs=("update",)))
    steps.step(after=60.0)
    assert "kubectl" not in steps.error


@pytest.mark.parametrize(
    "answer",
    ["42", "{}", '{"status": null}', '{"status": {"token": 5}}', '{"status": {"token": "a.b.c"}}', "another"],
)
def test_an_answer_without_a_token_of_the_anchor_is_not_stored(
    steps: StepByStep, local: Objects, leader_api: ApiServer, answer: str
) -> None:
    """Nor is a token that is bound to another Secret."""
    if answer == "another":
        other = anchor_name("east", 3600, "b" * 20)
        Objects(leader_api).put(Kind.SECRET, other, COMMON_AREA)
        answer = f'{{"status": {{"token": "{token_of(leader_api, 3600, other)}"}}}}'
    first = token_of(leader_api, 3600)
    steps.use(first)
    steps.now += 3000
    leader_api.faults.add(Fault(kind=FaultKind.GARBAGE, verbs=("create",), body=answer))
    steps.step()
    reason = "the answer to a TokenRequest has no token bound to its Secret"
    assert steps.error == f"{leader_api.url}: {reason}"
    assert stored(local) == first
    assert local.writes("/secrets/") == []


@pytest.mark.parametrize(
    "data", [{"token": "b3RoZXI="}, {"token": "*"}, {"token": "/w=="}, {"token": 5}, {}, None]
)
def test_a_secret_with_another_token_is_left_as_it_is(
    steps: StepByStep, local: Objects, leader_api: ApiServer, data: Any
) -> None:
    """No token is requested: the watch will report the other one. That is no error."""
    steps.use(token_of(leader_api, 3600))
    steps.now += 3000
    local.put(Kind.SECRET, "leader-token", data=data)
    assert steps.step() == 0
    assert steps.error == ""
    assert local.writes("/secrets/") == []
