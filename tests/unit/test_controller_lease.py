"""What a replica concludes from a Lease: whether it may write, whether it may take the Lease, what it writes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mcagent.controller.machinery.lease import Election, Elector, LeaseTiming
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError

TIMING = LeaseTiming(duration=15.0, renew_deadline=10.0, retry=2.0)
THEIRS = {"holderIdentity": "b", "leaseDurationSeconds": 20, "renewTime": "1", "acquireTime": "0"}


def observed(spec: Any, now: float = 100.0) -> Election:
    """Return what replica a knows after it has seen a Lease."""
    election = Election("a", TIMING)
    election.observe({"spec": spec}, now)
    return election


def test_a_replica_may_write_from_its_renewal_until_the_deadline() -> None:
    """Counted from the beginning of the renewal; without one it may not write."""
    election = Election("a", TIMING)
    assert election.permit(0.0) == 0.0
    election.took(100.0)
    assert election.permit(100.0) == 10.0
    assert election.permit(103.5) == 6.5
    assert election.permit(111.0) == -1.0
    election.lost()
    assert election.permit(100.0) == 0.0


def test_another_holder_ends_the_permit() -> None:
    """The own identity in the Lease does not, and nor does another field."""
    election = Election("a", TIMING)
    election.took(100.0)
    election.observe({"spec": {**THEIRS, "holderIdentity": "a"}}, 101.0)
    assert election.holder == "a"
    assert election.permit(101.0) == 9.0
    election.observe({"spec": THEIRS}, 102.0)
    assert election.holder == "b"
    assert election.permit(102.0) == 0.0


@pytest.mark.parametrize("spec", [{}, {"holderIdentity": ""}, {"holderIdentity": None}, None, [], "x"])
def test_a_lease_without_a_holder_may_be_taken(spec: Any) -> None:
    """At once, whatever else is in it, as may a Lease of which nothing is known."""
    election = observed(spec)
    assert election.holder == ""
    assert election.may_take(100.0)
    assert Election("a", TIMING).may_take(0.0)


def test_the_lease_of_another_replica_may_be_taken_when_it_has_run_out() -> None:
    """Counted from when its record was last seen to change, by the duration that is in it."""
    election = observed(THEIRS)
    assert not election.may_take(100.0)
    assert not election.may_take(119.9)
    assert election.may_take(120.0)
    election.observe({"spec": dict(THEIRS)}, 110.0)
    assert election.may_take(120.0)
    assert observed({**THEIRS, "holderIdentity": "a"}).may_take(100.0)


@pytest.mark.parametrize(
    ("field", "value", "is_news"),
    [
        ("renewTime", "2", True),
        ("acquireTime", "2", True),
        ("holderIdentity", "c", True),
        ("leaseDurationSeconds", 21, True),
        ("leaseTransitions", 5, False),
    ],
)
def test_a_change_of_the_record_begins_the_lease_anew(field: str, value: object, is_news: bool) -> None:
    """Each field by which a holder shows that it lives; no other field."""
    election = observed(THEIRS)
    election.observe({"spec": {**THEIRS, field: value}}, 110.0)
    assert election.may_take(120.5) is not is_news
    assert election.may_take(131.0)


@pytest.mark.parametrize(
    ("seconds", "lasts"),
    [(1, 1.0), (2**31 - 1, 2.0**31 - 1), (2**31, 15.0), (0, 15.0), (-1, 15.0), (None, 15.0), ("20", 15.0)],
)
def test_an_unusable_duration_is_that_of_this_replica(seconds: Any, lasts: float) -> None:
    """A Lease that another writes without one, or with nonsense, can be taken all the same."""
    election = observed({**THEIRS, "leaseDurationSeconds": seconds}, now=0.0)
    assert not election.may_take(lasts - 0.5)
    assert election.may_take(lasts)


def test_a_new_lease_names_its_holder_and_times() -> None:
    """It has had no transition."""
    assert Election("a", TIMING).record(None, "now") == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "renewTime": "now",
        "acquireTime": "now",
        "leaseTransitions": 0,
    }


def test_a_lease_that_is_taken_counts_a_transition() -> None:
    """Fields of others stay."""
    present = {"spec": {**THEIRS, "leaseTransitions": 4, "strategy": "x"}}
    assert Election("a", TIMING).record(present, "now") == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "renewTime": "now",
        "acquireTime": "now",
        "leaseTransitions": 5,
        "strategy": "x",
    }
    assert present["spec"]["holderIdentity"] == "b"  # what was read is not changed


def test_a_renewal_keeps_when_the_lease_was_acquired() -> None:
    """Only the time of the renewal changes."""
    spec = {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "renewTime": "1",
        "acquireTime": "0",
        "leaseTransitions": 4,
    }
    assert Election("a", TIMING).record({"spec": spec}, "now") == {**spec, "renewTime": "now"}
    without = {"holderIdentity": "a", "leaseTransitions": 4}
    assert Election("a", TIMING).record({"spec": without}, "now")["acquireTime"] == "now"


@pytest.mark.parametrize("present", [{}, {"spec": None}, {"spec": {"leaseTransitions": "x"}}])
def test_a_lease_without_usable_transitions_is_counted_from_zero(present: Any) -> None:
    """It was another's, or had no holder, before."""
    assert Election("a", TIMING).record(present, "now")["leaseTransitions"] == 1


def test_a_duration_below_a_second_is_written_as_one() -> None:
    """The field has whole seconds, and must be positive."""
    quick = LeaseTiming(duration=0.3, renew_deadline=0.2, retry=0.1)
    assert Election("a", quick).record(None, "now")["leaseDurationSeconds"] == 1
    slow = LeaseTiming(duration=15.6, renew_deadline=10.0, retry=2.0)
    assert Election("a", slow).record(None, "now")["leaseDurationSeconds"] == 16


@pytest.mark.parametrize(
    "numbers",
    [
        {"duration": 10.0},
        {"renew_deadline": 15.0},
        {"renew_deadline": 2.4},
        {"retry": 10.0},
        {"retry": 0.0},
        {"retry": -1.0},
    ],
)
def test_a_lease_without_time_to_renew_is_refused(numbers: dict[str, float]) -> None:
    """A deadline that is not less than the duration could let two write; equal is not less."""
    with pytest.raises(ValueError, match=r"duration > renew deadline > 1\.2"):
        LeaseTiming(**numbers)
    assert LeaseTiming(renew_deadline=2.5).retry == 2.0


class SlowServer:
    """An API server with one Lease, which takes `lasts` seconds for each request. `now` is the time."""

    server = "https://api"

    def __init__(self) -> None:
        self.now, self.lasts, self.version = 100.0, 0.0, 0
        self.lease: dict[str, Any] | None = None
        self.fails = False

    def find(self, path: str, *, timeout: float) -> dict[str, Any] | None:
        """Answer a read."""
        self.now += self.lasts
        return self.lease

    def request(self, method: str, path: str, *, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Answer a write."""
        self.now += self.lasts
        if self.fails:
            raise ApiRefusalError("overloaded", code=500)
        self.version += 1
        metadata = {"name": "l", "resourceVersion": str(self.version)}
        self.lease = {"kind": "Lease", "metadata": metadata, "spec": body["spec"]}
        return self.lease


def test_a_renewal_that_comes_after_the_deadline_resumes_all_work() -> None:
    """What came between deadline and answer was dropped, although no other replica took the Lease."""
    server, calls = SlowServer(), list[str]()
    elector = Elector(
        cast("Client", server),
        namespace="area",
        name="l",
        identity="a",
        gained=lambda: calls.append("gained"),
        lost=lambda: calls.append("lost"),
        timing=TIMING,
        clock=lambda: server.now,
    )
    elector._elect()
    server.now += 5.0
    elector._elect()  # in time
    assert calls == ["gained"]
    server.fails = True
    server.now += 5.0
    elector._elect()
    server.fails, server.lasts = False, 0.7
    server.now += 4.0
    assert elector.permit() == 1.0
    elector._elect()  # reads and writes the Lease, in 1.4 s
    assert elector.permit() > 0.0
    assert calls == ["gained", "gained"]
