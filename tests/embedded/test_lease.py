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
