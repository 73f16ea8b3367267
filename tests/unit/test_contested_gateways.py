"""The owner of a gateway's address that several clusters claim: it changes at most once while nothing else does.

The leader's reconcilers run over objects in memory: they decide, write the ResourceImports, and decide by these.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from itertools import groupby
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcagent.controller.contract import names
from mcagent.controller.leader.claims import ANY_CLUSTER, settled_in, settled_text
from mcagent.controller.leader.ranking import TRIAL
from mcagent.kube.source import RawObject
from mcagent.model.api.multicluster import ResourceImport
from mcagent.model.objects import Kind
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, read_granted
from tests.properties import costly
from tests.unit.leader_world import AREA, Leader, account, announce, cluster_info, reporting
from tests.unit.memory_objects import START, typed

ADDRESS = "192.168.77.7"  # the contested gateway
ELSEWHERE = "192.168.88.8"  # another gateway, of which members report answers
STEP = 7.0  # seconds
CLAIMANTS = ("a", "b", "c", "d", "e")
OTHERS = ("x", "y", "z")
SERVICE_CIDRS = {cluster: f"10.{number}.0.0/16" for number, cluster in enumerate((*CLAIMANTS, *OTHERS), 1)}
KEYS = {cluster: b64encode(cluster.encode() * 32).decode() for cluster in SERVICE_CIDRS}


def claiming(cluster: str, *gateways: str, key: str = "") -> RawObject:
    """Return the ClusterInfo export of a cluster with these gateways."""
    raw = cluster_info(cluster, SERVICE_CIDRS[cluster], key=key)
    raw["spec"]["clusterInfo"]["gatewayInfos"] = [{"gatewayIP": address} for address in gateways]
    return raw


def annotation(leader: Leader, cluster: str) -> str | None:
    """Return the annotation about settled contests of a cluster's ResourceImport."""
    raw = leader.api.get(Kind.RESOURCE_IMPORT, AREA, names.cluster_info(cluster))
    return None if raw is None else raw["metadata"]["annotations"].get(names.SETTLED_ANNOTATION)


def times(leader: Leader, cluster: str) -> dict[str, str]:
    """Return the times at which the claims of a cluster were granted."""
    raw = leader.api.get(Kind.RESOURCE_IMPORT, AREA, names.cluster_info(cluster))
    return {} if raw is None else read_granted(raw["metadata"]["annotations"][CLAIMS_ANNOTATION])


def owners(leader: Leader, address: str = ADDRESS) -> list[str]:
    """Return the clusters to which the address of a gateway is granted."""
    specs = {cluster: leader.imported(names.cluster_info(cluster)) for cluster in CLAIMANTS}
    return [
        cluster
        for cluster, spec in specs.items()
        if spec and {"gatewayIP": address} in (spec["clusterinfo"].get("gatewayInfos") or ())
    ]


def restart(leader: Leader) -> None:
    """End the leader's controller, and start another one that knows only what is stored."""
    leader.controller.closed = True
    leader.start()
    leader.controller.enqueue_all()


def pass_time(leader: Leader, seconds: float) -> list[str]:
    """Let time pass in steps; return the owners of the contested address one after the other."""
    history = owners(leader)
    for _ in range(int(seconds // STEP) + 1):
        leader.clock.forward(STEP)
        leader.controller.due()
        leader.controller.run()
        (owner,) = owners(leader)
        history.append(owner)
    return [owner for owner, _ in groupby(history)]


# --- the property -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a member reports."""

    answer: str = ""  # the cluster that answers at the contested address
    elsewhere: bool = True  # another gateway answers, too


@dataclass(frozen=True, kw_only=True)
class History:
    """Claims that do not change, what members report, and when the leader restarts."""

    keys: tuple[str, ...]  # of each claimant, from the oldest export to the newest; "": none
    reporters: tuple[tuple[bool, Report | None], ...]  # members without the claim: whether they encrypt
    own_reports: tuple[Report | None, ...] = ()  # of claimants
    granted: tuple[int, ...] = ()  # claimants to which leaders that saw no other claim granted the address before
    waited: int = 0  # seconds since these grants
    restarts: frozenset[int] = frozenset()  # after so many steps
    seed: int = 0  # of the order in which clusters are decided


def announced(cluster: str, report: Report | None) -> RawObject:
    """Return a member's announcement; None: it reports no links."""
    if report is None:
        return announce(cluster, START)
    answers = {ADDRESS: report.answer} if report.answer else {}
    return reporting(cluster, answers | ({ELSEWHERE: "x"} if report.elsewhere else {}))


class World:
    """A leader that follows a history; clusters are decided in an order by chance."""

    def __init__(self, history: History) -> None:
        self.random = Random(history.seed)
        self.claimants = CLAIMANTS[: len(history.keys)]
        self.leader = Leader(*self.claimants, *OTHERS[: len(history.reporters)])
        self.leader.controller.closed = True
        for claimant, key in zip(self.claimants, history.keys, strict=True):
            self.leader.put(claiming(claimant, ADDRESS, key=key))
            self.leader.clock.forward(1)
        for number in history.granted:
            self.grant(self.claimants[number % len(self.claimants)])
        for cluster, (encrypts, report) in zip(OTHERS, history.reporters, strict=False):
            key = KEYS[cluster] if encrypts else ""
            self.leader.put(claiming(cluster, f"192.168.99.{ord(cluster)}", key=key), announced(cluster, report))
        for cluster, report in zip(self.claimants, history.own_reports, strict=False):
            self.leader.put(announced(cluster, report))
        self.leader.clock.forward(history.waited)

    def grant(self, cluster: str) -> None:
        """Grant the claims of a cluster as a leader does that sees those of no other."""
        lone = Leader(cluster)
        lone.clock.now = self.leader.clock.now
        export = self.leader.api.get(Kind.RESOURCE_EXPORT, AREA, names.cluster_info(cluster))
        assert export is not None
        lone.put(export)
        record = lone.api.get(Kind.RESOURCE_IMPORT, AREA, names.cluster_info(cluster))
        assert record is not None
        self.leader.api.put(record)
        self.leader.clock.forward(1)

    def work(self, most: int = 1000) -> None:
        """Decide clusters in an order by chance, until nothing changes or `most` are decided."""
        for _ in range(most):
            if not self.leader.controller.step(self.random.randrange(100)):
                return
        assert most < 1000, "decisions without end"

    def run(self, restarts: frozenset[int], steps: int = 86) -> list[str]:
        """Let ten minutes pass; return the owners one after the other."""
        restart(self.leader)
        self.work()
        history = owners(self.leader)
        for number in range(steps):
            self.leader.clock.forward(STEP)
            self.leader.controller.due()
            if number in restarts:
                self.work(self.random.randrange(4))  # what is left in the queue is lost
                restart(self.leader)
            self.work()
            history += owners(self.leader)
            assert len(owners(self.leader)) == 1, (number, owners(self.leader))
        return [owner for owner, _ in groupby(history)]


def claimed_by(*clusters: str) -> History:
    """Return a history of claimants with keys, and of a member that encrypts and reports other gateways."""
    return History(keys=tuple(KEYS[cluster] for cluster in clusters), reporters=((True, Report()),))


_REPORTS = st.none() | st.builds(
    Report,
    answer=st.sampled_from(("", *CLAIMANTS, "x")),
    elsewhere=st.booleans(),
)
_HISTORIES = st.integers(2, 5).flatmap(
    lambda count: st.builds(
        History,
        keys=st.tuples(*(st.sampled_from(("", KEYS[cluster], KEYS[cluster])) for cluster in CLAIMANTS[:count])),
        reporters=st.lists(st.tuples(st.booleans(), _REPORTS), max_size=len(OTHERS)).map(tuple),
        own_reports=st.lists(_REPORTS, max_size=count).map(tuple),
        granted=st.lists(st.integers(0, count - 1), max_size=2, unique=True).map(tuple),
        waited=st.sampled_from((0, 30, 100)),
        restarts=st.frozensets(st.integers(0, 85), max_size=4),
        seed=st.integers(0, 2**16),
    )
)


@costly
@given(history=_HISTORIES)
@example(history=claimed_by("a", "b"))
@example(history=claimed_by(*CLAIMANTS))
def test_the_owner_changes_at_most_once(history: History) -> None:
    """Whatever the number of claimants, their keys, the reports of members, and the restarts of the leader."""
    successive_owners = World(history).run(history.restarts)
    assert len(successive_owners) <= 2, successive_owners


# --- examples -----------------------------------------------------------------------------------------------


def contested(*claimants: str) -> Leader:
    """Return a leader of claimants with keys, who claim the address ten seconds apart, and of a member x.

    Member x encrypts, and reports only the answers of other gateways.
    """
    leader = Leader(*CLAIMANTS, "x")
    leader.put(claiming("x", "192.168.99.1", key=KEYS["x"]), announced("x", Report()))
    for cluster in claimants:
        leader.put(claiming(cluster, ADDRESS, key=KEYS[cluster]))
        leader.clock.forward(10)
    return leader


def refusal(leader: Leader, cluster: str) -> str:
    """Return why claims of a cluster are not granted."""
    return str(leader.verdict(names.cluster_info(cluster)).get("message", ""))


def test_a_contested_gateway_has_one_trial() -> None:
    """The owner loses it after a minute to the cluster that asks, and does not get it back by another trial."""
    leader = contested("a", "b")
    assert pass_time(leader, 40) == ["a"]
    assert annotation(leader, "a") is None
    assert pass_time(leader, 600) == ["a", "b"]
    assert annotation(leader, "b") == f'{{"{ADDRESS}":["a"]}}'
    assert annotation(leader, "a") is None
    assert "because the owner before did not prove itself, and keeps it unless members report" in refusal(
        leader, "a"
    )


def test_the_cluster_that_answers_has_the_last_word() -> None:
    """A cluster that has lost its trial gets the address by a report, and the record of the contest ends."""
    leader = contested("a", "b")
    assert pass_time(leader, 120) == ["a", "b"]
    leader.put(announced("x", Report(answer="a")))
    assert pass_time(leader, 600) == ["a"]
    assert annotation(leader, "a") is None
    assert annotation(leader, "b") is None
    assert f"members report that the gateway of cluster a answers at {ADDRESS}" in refusal(leader, "b")


def test_a_gateway_that_proves_itself_needs_no_record() -> None:
    """It keeps its address, although nobody reports it later."""
    leader = contested("a", "b")
    assert pass_time(leader, 120) == ["a", "b"]
    leader.put(announced("x", Report(answer="b")))
    assert annotation(leader, "b") is None
    leader.put(announced("x", Report()))
    assert pass_time(leader, 600) == ["b"]


def test_the_record_ends_with_the_claim_of_the_rival() -> None:
    """A cluster that withdraws its claim, and claims the address later, has another trial."""
    leader = contested("a", "b", "c")
    assert pass_time(leader, 120) == ["a", "b"]
    assert annotation(leader, "b") == f'{{"{ADDRESS}":["a","c"]}}'
    leader.put(claiming("a", "192.168.66.1", key=KEYS["a"]))
    assert annotation(leader, "b") == f'{{"{ADDRESS}":["c"]}}'
    leader.put(claiming("a", ADDRESS, key=KEYS["a"]))
    assert pass_time(leader, 600) == ["a"]
    assert annotation(leader, "a") == f'{{"{ADDRESS}":["b","c"]}}'
    leader.leave("b")
    leader.leave("c")
    assert annotation(leader, "a") is None
    assert owners(leader) == ["a"]


def test_the_next_claimant_gets_what_the_owner_withdraws() -> None:
    """The record is the owner's: without it, the older export has the address, and the other one its trial."""
    leader = contested("a", "b", "c")
    assert pass_time(leader, 120) == ["a", "b"]
    leader.put(claiming("b", "192.168.66.1", key=KEYS["b"]))
    assert pass_time(leader, 600) == ["a", "c"]


def test_two_members_cannot_lock_a_third_out() -> None:
    """Who claims the address after a trial between two others has a trial, too."""
    leader = contested("a", "b")
    assert pass_time(leader, 120) == ["a", "b"]
    leader.put(claiming("c", ADDRESS, key=KEYS["c"]))
    assert pass_time(leader, 600) == ["c"]
    assert annotation(leader, "c") == f'{{"{ADDRESS}":["a","b"]}}'


@pytest.mark.parametrize("encrypts", [True, False])
def test_only_a_cluster_that_encrypts_challenges(encrypts: bool) -> None:
    """Without a key the gateway could not prove itself either."""
    leader = contested("a")
    leader.put(claiming("b", ADDRESS, key=KEYS["b"] if encrypts else ""))
    assert pass_time(leader, 600) == (["a", "b"] if encrypts else ["a"])


def test_reports_of_rivals_prove_nothing() -> None:
    """Neither that of the cluster itself nor that of another cluster that claims the address."""
    leader = contested("a", "b", "c")
    for claimant in ("a", "c"):
        leader.put(announced(claimant, Report(answer="a")))
    assert pass_time(leader, 600) == ["a", "b"]


@pytest.mark.parametrize("reporter", ["x", ""])
def test_a_contest_takes_nothing_from_others(reporter: str) -> None:
    """A gateway inside a CIDR of a third cluster is not granted, however many claim it and whoever answers."""
    leader = contested("a")
    leader.put(cluster_info("d", "10.200.0.0/16"))
    for cluster in ("b", "c"):
        leader.put(claiming(cluster, "10.200.0.7", key=KEYS[cluster]))
    if reporter:
        leader.put(reporting(reporter, {"10.200.0.7": "b"}))
    leader.forward(3 * TRIAL)
    assert owners(leader, "10.200.0.7") == []
    assert leader.imported(names.cluster_info("d"))["clusterinfo"]["serviceCIDR"] == "10.200.0.0/16"


def test_the_owner_keeps_the_address_until_the_next_has_it() -> None:
    """A challenger that may not have the address does not take it from the owner."""
    leader = contested("a")
    leader.put(account("b", allowed_gateways="192.168.1.0/24"), claiming("b", ADDRESS, key=KEYS["b"]))
    assert pass_time(leader, 600) == ["a"]
    leader.put(account("b", allowed_gateways="192.168.0.0/16"))
    leader.controller.closed = True  # before cluster b is decided
    leader.start()
    leader.controller.enqueue_all()
    while leader.controller.step():
        assert owners(leader)
    assert owners(leader) == ["b"]


def test_a_leader_that_ends_between_the_two_writes() -> None:
    """The next one, however late it starts, completes the change: the new owner keeps its grant."""
    leader = contested("a", "b")
    leader.clock.forward(TRIAL)
    leader.controller.enqueue_all()
    while len(owners(leader)) < 2:
        assert leader.controller.step()
    granted = times(leader, "b")
    leader.controller.closed = True
    leader.clock.forward(2 * TRIAL)
    restart(leader)
    leader.controller.run()
    assert owners(leader) == ["b"]
    assert times(leader, "b") == granted


def test_a_grant_without_a_key_ends_no_older_one() -> None:
    """Of two grants by leaders that did not see each other's the older stands: nobody challenges it."""
    world = World(History(keys=(KEYS["a"], ""), reporters=((True, Report()),), granted=(0,), waited=100))
    world.grant("b")
    assert owners(world.leader) == ["a", "b"]
    assert world.run(frozenset()) == ["a"]


# --- the annotation -----------------------------------------------------------------------------------------


def test_the_record_of_settled_contests() -> None:
    """It has the clusters by address, all of them by one character where they are many, and none where none is."""
    assert settled_text({}) is None
    assert settled_text({ADDRESS: frozenset()}) is None
    assert (
        settled_text({ADDRESS: {"b", "a"}, "192.0.2.1": {"c"}}) == f'{{"192.0.2.1":["c"],"{ADDRESS}":["a","b"]}}'
    )
    many = {f"cluster-{number}" for number in range(32)}
    text = settled_text({ADDRESS: many})
    assert text is not None
    assert settled_in(recorded(text)) == {ADDRESS: many}
    assert settled_text({ADDRESS: many | {"cluster-32"}}) == f'{{"{ADDRESS}":["{ANY_CLUSTER}"]}}'


@pytest.mark.parametrize("text", ["", "{", "[]", '{"192.0.2.1":"a"}'])
def test_an_invalid_record_settles_nothing(text: str) -> None:
    """As without the annotation."""
    assert settled_in(recorded(text)) == {}
    assert settled_in(None) == {}


def test_a_record_of_many_clusters_holds_for_each() -> None:
    """It stays while there is a rival, and goes with the last."""
    leader = contested("a", "b", "c")
    assert pass_time(leader, 120) == ["a", "b"]
    leader.api.put(annotated(leader, "b", f'{{"{ADDRESS}":["{ANY_CLUSTER}"]}}'))
    assert pass_time(leader, 600) == ["b"]
    assert annotation(leader, "b") == f'{{"{ADDRESS}":["{ANY_CLUSTER}"]}}'
    leader.put(*(claiming(cluster, "192.168.66.1", key=KEYS[cluster]) for cluster in ("a", "c")))
    assert annotation(leader, "b") is None


def annotated(leader: Leader, cluster: str, text: str) -> RawObject:
    """Return the ResourceImport of a cluster with another record of settled contests."""
    raw = leader.api.get(Kind.RESOURCE_IMPORT, AREA, names.cluster_info(cluster))
    assert raw is not None
    annotations = raw["metadata"]["annotations"] | {names.SETTLED_ANNOTATION: text}
    return {**raw, "metadata": {**raw["metadata"], "annotations": annotations}}


def recorded(text: str) -> ResourceImport:
    """Return a ResourceImport with a record of settled contests."""
    record = typed(
        {
            "kind": "ResourceImport",
            "metadata": {
                "name": names.cluster_info("a"),
                "namespace": AREA,
                "annotations": {names.SETTLED_ANNOTATION: text},
            },
            "spec": {"kind": "ClusterInfo"},
        }
    )
    assert isinstance(record, ResourceImport)
    return record
