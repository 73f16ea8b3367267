"""The owner of a gateway's address that several clusters claim: it changes at most once while nothing else does.

The leader's reconcilers run over objects in memory: they decide, write the ResourceImports, and decide by these.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from itertools import combinations, groupby
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcagent.controller.contract import names
from mcagent.controller.contract.cidr_claims import collide
from mcagent.controller.leader.claims import claims_of_cluster, settled_in, settled_text
from mcagent.controller.leader.disputes import ANY_CLUSTER, MAX_TRIED, PROOF_LIFE, TRIAL
from mcagent.kube.source import RawObject
from mcagent.model.api.multicluster import ResourceImport
from mcagent.model.objects import Kind
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, read_granted
from tests.properties import costly
from tests.worlds.leader_world import AREA, Leader, account, announce, cluster_info, reporting
from tests.worlds.memory_objects import START, timestamp, typed

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
    return reporting(cluster, answers | ({ELSEWHERE: "x"} if report.elsewhere else {}), CLAIMANTS)


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


@dataclass(frozen=True, kw_only=True)
class Event:
    """A claimant publishes what collides with the address, or something else; or a member reports."""

    cluster: str
    gateways: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ()
    report: Report | None = None
    seconds: float = 0.0  # that pass afterwards


DERIVED = "176.168.77.7"  # its tunnel endpoint is that of the contested gateway
_EVENTS = st.lists(
    st.one_of(
        st.builds(
            Event,
            cluster=st.sampled_from(CLAIMANTS[:3]),
            gateways=st.sampled_from(((), (ADDRESS,), (ADDRESS,), (DERIVED,), (ADDRESS, DERIVED))),
            cidrs=st.sampled_from(((), (), (f"{ADDRESS}/32",), ("192.168.77.0/24",))),
            seconds=st.sampled_from((0.0, 10.0, 70.0)),
        ),
        st.builds(Event, cluster=st.sampled_from((*CLAIMANTS[:3], "x", "y")), report=_REPORTS),
    ),
    max_size=8,
)


def happen(leader: Leader, event: Event, keys: dict[str, str]) -> None:
    """Let an event happen, and the leader decide."""
    if event.report is not None:
        leader.put(announced(event.cluster, event.report))
    elif event.cluster in CLAIMANTS:
        raw = claiming(event.cluster, *event.gateways, key=keys[event.cluster])
        raw["spec"]["clusterInfo"]["podCIDRs"] = list(event.cidrs)
        leader.put(raw)
    leader.clock.forward(event.seconds)
    leader.controller.due()
    leader.controller.run()


@costly
@given(events=_EVENTS, encrypting=st.sets(st.sampled_from((*CLAIMANTS[:3], "x", "y"))), restarts=st.booleans())
def test_after_any_history_the_owner_changes_at_most_once(
    events: list[Event], encrypting: set[str], *, restarts: bool
) -> None:
    """Once claims and reports stay; and no two clusters have what collides, in any order of decisions."""
    keys = {cluster: KEYS[cluster] if cluster in encrypting else "" for cluster in KEYS}
    leader = Leader(*CLAIMANTS[:3], "x", "y")
    for cluster in ("x", "y"):
        leader.put(claiming(cluster, f"192.168.99.{ord(cluster)}", key=keys[cluster]))
    for event in events:
        happen(leader, event, keys)
    history = [owners(leader)]
    for _ in range(30):
        if restarts:
            restart(leader)
        leader.clock.forward(STEP)
        leader.controller.due()
        leader.controller.run()
        history.append(owners(leader))
        assert len(history[-1]) <= 1, history[-1]
    assert len([owner for owner, _ in groupby(history)]) <= 2, history
    granted = [(c, claim) for c in CLAIMANTS[:3] for claim in claims_of_cluster(leader.view, AREA, c).granted]
    for (one, a), (other, b) in combinations(granted, 2):
        derived = a.gateway and b.gateway and a != b  # only where both have keys
        if one != other and ({one, other} <= encrypting or not derived):
            assert not collide(a, b), (one, a, other, b)


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
    """A cluster that has lost its trial gets the address by a report."""
    leader = contested("a", "b")
    assert pass_time(leader, 120) == ["a", "b"]
    leader.put(announced("x", Report(answer="a")))
    assert pass_time(leader, 600) == ["a"]
    assert annotation(leader, "a") is None
    assert f"members report that the gateway of cluster a answers at {ADDRESS}" in refusal(leader, "b")


def test_a_gateway_that_proves_itself_needs_no_record() -> None:
    """It keeps its address for a day after the last report; then the other cluster has a trial."""
    leader = contested("a", "b")
    assert pass_time(leader, 120) == ["a", "b"]
    leader.put(announced("x", Report(answer="b")))
    assert annotation(leader, "b") is None
    leader.put(announced("x", Report()))
    assert pass_time(leader, 600) == ["b"]
    a_day_ago = timestamp(leader.clock() - PROOF_LIFE)
    leader.api.put(annotated(leader, "b", f"{ADDRESS}={a_day_ago}", names.PROVED_ANNOTATION))
    assert pass_time(leader, 600) == ["b", "a"]
    assert pass_time(leader, 600) == ["a"]


def test_a_new_claim_is_no_new_trial() -> None:
    """Neither a rival that has lost the contest, nor the cluster that has won it by a trial, gets another one."""
    leader = contested("a", "b")
    assert pass_time(leader, 120) == ["a", "b"]
    elsewhere = {cluster: claiming(cluster, "192.168.66.1", key=KEYS[cluster]) for cluster in ("a", "b")}
    claims = {cluster: claiming(cluster, ADDRESS, key=KEYS[cluster]) for cluster in ("a", "b")}
    leader.put(elsewhere["a"])
    leader.put(claims["a"])
    assert pass_time(leader, 600) == ["b"]
    leader.put(elsewhere["b"])
    leader.put(claims["b"])
    assert pass_time(leader, 600) == ["a"]
    leader.put(claiming("a"), claiming("b"))
    leader.put(claims["b"])
    leader.put(claims["a"])
    assert pass_time(leader, 600) == ["b"]


def test_trials_of_a_cluster_are_counted() -> None:
    """A cluster whose record is full has no further trial."""
    leader = contested("a", "b")
    tried = {f"192.168.99.{number}": ["c"] for number in range(MAX_TRIED)}
    leader.api.put(annotated(leader, "b", json.dumps(tried)))
    assert pass_time(leader, 600) == ["a"]


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
    assert pass_time(leader, 600) == ["b", "c"]
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
    for _ in range(2):
        leader.controller.enqueue_all()
        while leader.controller.step():
            assert owners(leader)
        leader.clock.forward(TRIAL)
        leader.controller.due()
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
    """As if each were named."""
    leader = contested("a", "b", "c")
    assert pass_time(leader, 120) == ["a", "b"]
    leader.api.put(annotated(leader, "b", f'{{"{ADDRESS}":["{ANY_CLUSTER}"]}}'))
    assert pass_time(leader, 600) == ["b"]
    assert annotation(leader, "b") == f'{{"{ADDRESS}":["{ANY_CLUSTER}"]}}'


def annotated(leader: Leader, cluster: str, text: str, key: str = names.SETTLED_ANNOTATION) -> RawObject:
    """Return the ResourceImport of a cluster with another record of its gateways."""
    raw = leader.api.get(Kind.RESOURCE_IMPORT, AREA, names.cluster_info(cluster))
    assert raw is not None
    annotations = raw["metadata"]["annotations"] | {key: text}
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
