"""Leader election: at most one replica may write at any time, and a dead one is replaced within the Lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.apiserver import ApiServer, Fault, FaultKind
from mcagent.controller.machinery.engine import Engine
from mcagent.controller.machinery.lease import Election, Elector, LeaseTiming
from mcagent.model.objects import Kind
from mcagent.supervised import BackgroundLoop
from tests.embedded.controlworld import NAMESPACE, QUICK, Copier, Objects, client_of
from tests.waiting import until

TIMING = LeaseTiming(duration=3.0, renew_deadline=2.0, retry=0.2)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """Give a running server."""
    with ApiServer(bookmark_interval=0.1) as server:
        yield server


class Replica:
    """An elector, and what it was told."""

    def __init__(self, api: ApiServer, path: Path, name: str, **fields: Any) -> None:
        self.told: list[str] = []
        self.elector = Elector(
            client_of(api, path),
            namespace=NAMESPACE,
            name="mcagent-test",
            identity=name,
            gained=lambda: self.told.append("gained"),
            lost=lambda: self.told.append("lost"),
            timing=TIMING,
            **fields,
        )

    @property
    def leads(self) -> bool:
        """Tell whether it may write now."""
        return self.elector.permit() > 0


class Late:
    """An engine that is made after its elector."""

    def __init__(self, engines: dict[str, Engine], name: str) -> None:
        self.engines, self.name = engines, name

    def resume(self) -> None:
        """Tell the engine."""
        self.engines[self.name].resume()

    def suspend(self) -> None:
        """Tell the engine."""
        self.engines[self.name].suspend()


@pytest.fixture
def replica(api: ApiServer, tmp_path: Path) -> Iterator[Callable[..., Replica]]:
    """Give a function that starts a replica; all are stopped at the end."""
    replicas: list[Replica] = []

    def start(name: str, **fields: Any) -> Replica:
        replica = Replica(api, tmp_path, name, **fields)
        replicas.append(replica)
        replica.elector.start()
        return replica

    yield start
    for replica in replicas:
        replica.elector.stop()


def lease(api: ApiServer) -> dict[str, Any]:
    """Return the spec of the Lease."""
    spec: dict[str, Any] = Objects(api).get(Kind.LEASE, "mcagent-test")["spec"]
    return spec


@pytest.mark.timing
def test_one_of_two_leads_and_the_other_waits(api: ApiServer, replica: Callable[..., Replica]) -> None:
    """The first gets the Lease and keeps it."""
    first = replica("a")
    until(lambda: first.leads)
    second = replica("b")
    until(lambda: second.elector.holder == "a")
    renewed = lease(api)["renewTime"]
    until(lambda: lease(api)["renewTime"] != renewed)
    assert first.leads
    assert not second.leads
    assert lease(api)["leaseTransitions"] == 0


@pytest.mark.timing
def test_renewed_credentials_are_read(api: ApiServer, replica: Callable[..., Replica], tmp_path: Path) -> None:
    """When the API server refuses the present ones, as informers read them."""
    api.tokens = frozenset({"first"})
    first = replica("a")
    until(lambda: first.leads)
    api.tokens = frozenset({"second"})
    until(lambda: first.told == ["gained", "lost"], timeout=3 * TIMING.renew_deadline)
    client_of(api, tmp_path)  # writes the kubeconfig anew
    until(lambda: first.leads, timeout=3 * TIMING.duration)


@pytest.mark.timing
def test_a_released_lease_is_taken_at_once(api: ApiServer, replica: Callable[..., Replica]) -> None:
    """After an orderly end the next replica does not wait for the Lease to run out."""
    first, second = replica("a"), replica("b")
    until(lambda: first.leads or second.leads)
    leader, other = (first, second) if first.leads else (second, first)
    leader.elector.stop()
    assert not leader.leads
    leader.elector.release()
    until(lambda: other.leads, timeout=TIMING.duration)
    assert lease(api)["leaseTransitions"] == 1


@pytest.mark.timing
def test_a_dead_replica_is_replaced_when_its_lease_runs_out(
    api: ApiServer, replica: Callable[..., Replica]
) -> None:
    """Not before its duration, as seen by who waits; and not much later."""
    first = replica("a")
    until(lambda: first.leads)
    second = replica("b")
    until(lambda: second.elector.holder == "a")
    BackgroundLoop.stop(first.elector)  # dead: it renews no more and gives nothing up
    until(lambda: not first.leads)
    until(lambda: second.leads, timeout=5 * TIMING.duration)
    assert lease(api)["holderIdentity"] == "b"


@pytest.mark.timing
def test_who_cannot_renew_stops_before_another_may_start(api: ApiServer, replica: Callable[..., Replica]) -> None:
    """A holder whose requests hang is told of the loss within its renew deadline, without any answer."""
    first = replica("a")
    until(lambda: first.leads and first.told == ["gained"])
    api.faults.add(Fault(kind=FaultKind.SILENT, path="leases"))
    until(lambda: not first.leads, timeout=3 * TIMING.renew_deadline)
    until(lambda: first.told == ["gained", "lost"], timeout=3 * TIMING.renew_deadline)
    api.faults.clear()
    until(lambda: first.leads)
    assert first.told == ["gained", "lost", "gained"]


@pytest.mark.timing
def test_who_sees_another_as_holder_stops_at_once(api: ApiServer, replica: Callable[..., Replica]) -> None:
    """A Lease that was taken by force is respected."""
    first = replica("a")
    until(lambda: first.leads)
    Objects(api).change(
        Kind.LEASE,
        "mcagent-test",
        lambda old: {**old, "spec": {**old["spec"], "holderIdentity": "x", "leaseDurationSeconds": 60}},
    )
    until(lambda: not first.leads, timeout=TIMING.renew_deadline)
    assert lease(api)["holderIdentity"] == "x"


@pytest.mark.timing
def test_nonsense_numbers_are_refused() -> None:
    """A deadline that is not less than the duration could let two write."""
    for numbers in ({"renew_deadline": 15.0}, {"retry": 10.0}, {"retry": 0.0}):
        with pytest.raises(ValueError, match="duration > renew deadline"):
            LeaseTiming(**numbers)


class TurnByTurn(Elector):
    """An elector whose turns a test makes, at times of a clock that the test moves."""

    def __init__(self, api: ApiServer, path: Path, name: str) -> None:
        self.now = 1000.0
        self.told: list[str] = []
        super().__init__(
            client_of(api, path),
            namespace=NAMESPACE,
            name="mcagent-test",
            identity=name,
            gained=lambda: self.told.append("gained"),
            lost=lambda: self.told.append("lost"),
            timing=LeaseTiming(duration=15.0, renew_deadline=10.0, retry=2.0),
            clock=lambda: self.now,
        )

    def turn(self, after: float = 0.0) -> float:
        """Try once, so many seconds after the turn before; return the seconds to the next try."""
        self.now += after
        return self._elect()


def requests(api: ApiServer) -> list[str]:
    """Return the verbs of the requests since the last call."""
    verbs = [verb for _, verb, _ in api.requests]
    api.requests.clear()
    return verbs


def test_the_first_turn_creates_the_lease_and_later_ones_renew_it(api: ApiServer, tmp_path: Path) -> None:
    """One request each; a turn comes before the deadline, and the permit counts from its beginning."""
    first = TurnByTurn(api, tmp_path, "a")
    assert first.permit() == 0.0
    assert first.turn() == 2.0
    assert (first.told, first.holder, first.error) == (["gained"], "a", "")
    assert first.permit() == 10.0
    assert requests(api) == ["get", "create"]
    created = Objects(api).get(Kind.LEASE, "mcagent-test")
    assert (created["apiVersion"], created["metadata"]["namespace"]) == ("coordination.k8s.io/v1", NAMESPACE)
    assert created["spec"]["holderIdentity"] == "a"
    first.turn(after=2.0)
    assert first.permit() == 10.0
    assert requests(api) == ["update"]
    renewed = lease(api)
    assert renewed["renewTime"] > created["spec"]["renewTime"]
    assert renewed["acquireTime"] == created["spec"]["acquireTime"]
    assert first.told == ["gained"]


def test_a_replica_waits_while_another_renews_and_takes_over_when_it_does_not(
    api: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The Lease's duration after the last renewal that was seen; the first replica then hears of the loss."""
    first, second = TurnByTurn(api, tmp_path, "a"), TurnByTurn(api, tmp_path, "b")
    first.turn()
    for _ in range(3):
        assert 2.0 <= second.turn(after=10.0) <= 2.4
        first.turn(after=5.0)
    assert (second.holder, second.error, second.permit(), second.told) == ("a", "", 0.0, [])
    second.turn()
    second.turn(after=14.9)
    assert lease(api)["holderIdentity"] == "a"
    second.turn(after=0.1)
    assert (lease(api)["holderIdentity"], lease(api)["leaseTransitions"]) == ("b", 1)
    assert (second.told, second.permit()) == (["gained"], 10.0)
    assert 2.0 <= first.turn(after=1.0) <= 2.4
    assert f"lease {NAMESPACE}/mcagent-test: lost: taken by another replica" in caplog.messages
    assert (first.told, first.holder, first.permit(), first.error) == (["gained", "lost"], "b", 0.0, "")
    first.turn(after=1.0)
    assert first.told == ["gained", "lost"]
    assert lease(api)["holderIdentity"] == "b"


def test_a_holder_that_cannot_renew_goes_on_until_the_deadline(
    api: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says why, tries again before the deadline, and holds the Lease again afterwards."""
    first = TurnByTurn(api, tmp_path, "a")
    first.turn()
    api.faults.add(Fault(kind=FaultKind.STATUS, code=500, verbs=("update", "get")))
    assert first.turn(after=4.0) == 2.0
    assert "HTTP 500" in first.error
    assert (first.told, first.permit()) == (["gained"], 6.0)
    assert first.turn(after=5.0) == pytest.approx(1.0)
    assert first.turn(after=0.995) == pytest.approx(0.01)
    first.turn(after=1.0)
    assert (first.told, first.permit()) == (["gained", "lost"], 0.0)
    assert f"lease {NAMESPACE}/mcagent-test: lost: {first.error}" in caplog.messages
    api.faults.clear()
    first.turn(after=1.0)
    assert (first.told, first.error) == (["gained", "lost", "gained"], "")
    assert lease(api)["leaseTransitions"] == 0


def test_a_change_of_the_lease_by_another_client_is_no_loss(api: ApiServer, tmp_path: Path) -> None:
    """Metadata that a user adds makes one renewal conflict; the metadata stays."""
    first = TurnByTurn(api, tmp_path, "a")
    first.turn()
    labels = {"labels": {"theirs": "1"}}
    Objects(api).change(Kind.LEASE, "mcagent-test", lambda old: {**old, "metadata": {**old["metadata"], **labels}})
    requests(api)
    first.turn(after=2.0)
    assert requests(api) == ["update", "get"]
    assert (first.told, first.permit(), first.error) == (["gained"], 8.0, "")
    first.turn(after=2.0)
    assert requests(api) == ["update"]
    assert first.permit() == 10.0
    assert Objects(api).get(Kind.LEASE, "mcagent-test")["metadata"]["labels"] == {"theirs": "1"}


def test_a_deleted_lease_is_created_again(api: ApiServer, tmp_path: Path) -> None:
    """Within the deadline no loss is reported."""
    first = TurnByTurn(api, tmp_path, "a")
    first.turn()
    Objects(api).remove(Kind.LEASE, "mcagent-test")
    first.turn(after=2.0)
    assert "not found" in first.error
    first.turn(after=2.0)
    assert (first.told, first.error, first.permit()) == (["gained"], "", 10.0)
    assert lease(api)["holderIdentity"] == "a"


@pytest.mark.parametrize("spec", [{}, {"spec": {"holderIdentity": ""}}])
def test_a_lease_of_a_manifest_is_taken(api: ApiServer, tmp_path: Path, spec: dict[str, Any]) -> None:
    """One that an administrator created, without a holder or without any content."""
    Objects(api).put(Kind.LEASE, "mcagent-test", **spec)
    first = TurnByTurn(api, tmp_path, "a")
    first.turn()
    assert (first.told, first.error) == (["gained"], "")
    assert lease(api)["holderIdentity"] == "a"


def test_a_lease_that_is_none_is_left_as_it_is(api: ApiServer, tmp_path: Path) -> None:
    """The error names the server."""
    Objects(api).put(Kind.LEASE, "mcagent-test", spec=["x"])
    first = TurnByTurn(api, tmp_path, "a")
    first.turn()
    assert first.error == f"{api.url}: the Lease has no usable spec"
    assert first.told == []
    assert Objects(api).get(Kind.LEASE, "mcagent-test")["spec"] == ["x"]


def test_a_lease_that_is_released_may_be_taken_at_once(api: ApiServer, tmp_path: Path) -> None:
    """After `stop`, which ends the permit; only the holder releases it, and once."""
    first, second = TurnByTurn(api, tmp_path, "a"), TurnByTurn(api, tmp_path, "b")
    first.turn()
    second.turn()
    second.stop()
    second.release()
    assert lease(api)["holderIdentity"] == "a"
    first.stop()
    assert first.permit() == 0.0
    before = lease(api)
    requests(api)
    first.release()
    first.release()
    assert requests(api) == ["update"]
    assert lease(api).keys() == before.keys()
    assert lease(api)["renewTime"] > before["renewTime"]
    assert (lease(api)["holderIdentity"], lease(api)["leaseDurationSeconds"]) == ("", 1)
    third = TurnByTurn(api, tmp_path, "c")
    third.turn()
    assert third.told == ["gained"]
    assert lease(api)["leaseTransitions"] == 1


def test_a_lease_that_cannot_be_released_runs_out(
    api: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the process does not wait for it."""
    first = TurnByTurn(api, tmp_path, "a")
    first.turn()
    first.stop()
    api.faults.add(Fault(kind=FaultKind.STATUS, code=500, verbs=("update",)))
    first.release()
    assert any(text.startswith(f"lease {NAMESPACE}/mcagent-test: not released: ") for text in caplog.messages)
    assert lease(api)["holderIdentity"] == "a"


_STEP = st.tuples(
    st.sampled_from(["a", "b", "c"]), st.sampled_from(["try", "lost answer", "no answer"]), st.floats(0.1, 8)
)


@pytest.mark.timing
@given(
    steps=st.lists(_STEP, max_size=60),
    skew=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
)
def test_never_may_two_write(steps: list[tuple[str, str, float]], skew: list[float]) -> None:
    """Whatever gets lost, however long replicas sleep, and whatever their clocks say: one writer at a time."""
    timing = LeaseTiming()
    replicas = {name: Election(name, timing) for name in "abc"}
    offset = dict(zip("abc", skew, strict=True))
    stored: dict[str, Any] | None = None
    now = 1e7

    for name, fate, pause in steps:
        now += pause
        local = now + offset[name]
        election = replicas[name]
        if fate != "no answer":
            if stored is not None:
                election.observe(stored, local)
            if stored is None or election.may_take(local):
                written = {"spec": election.record(stored, f"{now}-{name}")}
                stored = written
                if fate != "lost answer":
                    election.observe(written, local)
                    election.took(local)
        writers = [other for other, replica in replicas.items() if replica.permit(now + offset[other]) > 0]
        assert len(writers) <= 1


@pytest.mark.timing
def test_two_replicas_of_an_engine_write_everything_once(api: ApiServer, tmp_path: Path) -> None:
    """One is killed in the middle: the other goes on within the Lease, and no object is written twice."""
    local = Objects(api)
    engines: dict[str, Engine] = {}
    electors: dict[str, Elector] = {}
    for name in ("a", "b"):
        elector = electors[name] = Elector(
            client_of(api, tmp_path),
            namespace=NAMESPACE,
            name="mcagent-test",
            identity=name,
            gained=Late(engines, name).resume,
            lost=Late(engines, name).suspend,
            timing=TIMING,
        )
        engines[name] = Engine(
            [Copier()],
            client_of(api, tmp_path),
            namespace=NAMESPACE,
            member=False,
            permit=elector.permit,
            timing=QUICK,
        )
    for name in ("a", "b"):
        engines[name].start()
        electors[name].start()
    try:
        until(lambda: any(elector.permit() > 0 for elector in electors.values()))
        first, second = ("a", "b") if electors["a"].permit() > 0 else ("b", "a")
        stop = threading.Event()

        def exports() -> None:
            for number in range(2000):
                local.put(Kind.SERVICE_EXPORT, f"s{number}", metadata={"labels": {"said": "x"}})
                if stop.wait(0.02):
                    return

        maker = threading.Thread(target=exports)
        maker.start()
        until(lambda: len(local.names(Kind.CONFIG_MAP)) > 5)
        BackgroundLoop.stop(electors[first])  # killed: it renews no more and gives nothing up
        until(lambda: electors[second].permit() > 0)
        count = len(local.names(Kind.CONFIG_MAP))
        until(lambda: len(local.names(Kind.CONFIG_MAP)) > count + 5)
        stop.set()
        maker.join(30)
        exported = len(local.names(Kind.SERVICE_EXPORT))
        until(lambda: len(local.names(Kind.CONFIG_MAP)) == exported)
        assert electors[first].permit() <= 0
        creates = [write for write in local.writes("configmaps") if write.startswith("create")]
        assert len(creates) == exported
        assert not [write for write in local.writes("configmaps") if write.startswith("patch")]
    finally:
        for name in ("a", "b"):
            engines[name].stop()
            electors[name].stop()
