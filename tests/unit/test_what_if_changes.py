"""The changes between two forecasts, each with its effect and words, and the answer as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from ipaddress import IPv4Address, ip_network
from typing import Any

import pytest

from mcagent.api.plan import ForecastChange
from mcagent.core.plan.diff import diff_desired
from mcagent.model.dataplane.resources import PeerKind
from mcagent.model.node_state import AcceptedCluster, LocalGateway, NodeState, PolicyRuleName
from mcagent.model.plan import Desired, Fragment, Plan
from mcagent.model.problem import Problem, Severity
from mcagent.trace.whatif.compare import Comparison, Effect, compare
from mcagent.trace.whatif.forecast import WORKERS, EgressPath, Forecast
from mcagent.trace.whatif.report import answer_text, api_forecast
from tests.worlds.core_inputs import networks, tunnel_port

PODS = networks("10.10.0.0/16")
FAR = "203.0.113.1"


def forecast(state: NodeState | None = None, problems: tuple[Problem, ...] = (), **values: Any) -> Forecast:
    """Return a forecast for cluster home, whose Pods other clusters know by their own addresses."""
    desired = Desired(fragments={}, problems=problems, state=state or NodeState())
    return Forecast(**{"desired": desired, "cluster_id": "home", "published": PODS, **values})


def cluster(name: str = "east", *cidrs: str, snat: bool = False) -> AcceptedCluster:
    """Return another cluster."""
    return AcceptedCluster(cluster_id=name, cidrs=networks(*cidrs), gateways=(IPv4Address(FAR),), snat=snat)


def gateway(node: str, standby: str = "") -> LocalGateway:
    """Return a gateway of this cluster."""
    address = IPv4Address("192.0.2.1")
    return LocalGateway(
        node=node, gateway_ip=address, internal_ip=address, source=address, service_cidr=None, standby=standby
    )


def changes(before: Forecast, after: Forecast) -> list[tuple[str, str]]:
    """Return the effects and texts of the changes."""
    return [(change.effect, change.text) for change in compare(before, after).findings]


def paths(*parts: tuple[str, str, int, int]) -> dict[EgressPath, Fraction]:
    """Return paths: gateway, remote gateway and share. A gateway translates to the address of its name."""
    return {EgressPath(node, f"source of {node}", far): Fraction(part, of) for node, far, part, of in parts}


def connected(of: Mapping[EgressPath, Fraction], *, snat: bool = False, **values: Any) -> Forecast:
    """Return a forecast in which connections of workers to cluster east take these paths."""
    return forecast(
        **{
            "clusters": {"east": cluster(snat=snat)},
            "places": {"w1": WORKERS, "w2": WORKERS},
            "paths": {WORKERS: {"east": of}},
            **values,
        }
    )


# --- Nodes and clusters


def test_a_node_that_falls_silent_is_lost_with_its_pods() -> None:
    """One that was silent before, or has no place in the forecast, is not; the order is that of names."""
    before = forecast(places={"w2": WORKERS, "w1": WORKERS, "g": "g"}, silent=frozenset({"g"}))
    after = forecast(silent=frozenset({"g", "w1", "w2", "x"}))
    findings = compare(before, after).findings
    assert [(change.effect, change.nodes, change.text) for change in findings] == [
        ("lost", (name,), f"Node {name} and all that runs on it: its Pods reach nothing, and are not reached")
        for name in ("w1", "w2")
    ]


def test_gateways_that_come_go_or_stand_by_are_noted() -> None:
    """A standby of a silent Node is of no interest."""
    before = forecast(gateways={name: gateway(name) for name in ("a", "b", "c", "d")})
    after = forecast(
        gateways={
            "b": gateway("b", "demoted"),
            "c": gateway("c", "demoted"),
            "d": gateway("d"),
            "e": gateway("e"),
        },
        silent=frozenset({"c"}),
        refused=frozenset({"d"}),
    )
    assert changes(before, after) == [
        ("noted", "d would not drain: no other gateway of this cluster could take over"),
        ("noted", "a: no longer a gateway"),
        ("noted", "e becomes a gateway"),
        ("noted", "b is on standby: demoted"),
    ]
    assert changes(after, before)[-2:] == [
        ("noted", "b is no longer on standby (was: demoted)"),
        ("noted", "c is no longer on standby (was: demoted)"),
    ]
    assert {change.nodes for change in compare(before, after).findings} == {("a",), ("b",), ("d",), ("e",)}


def test_clusters_are_reached_or_lost_as_a_whole() -> None:
    """And by network: in the order of addresses."""
    before = forecast(clusters={"east": cluster("east", "10.20.0.0/16"), "north": cluster("north")})
    after = forecast(
        clusters={"east": cluster("east", "10.9.0.0/16", "10.100.0.0/16"), "west": cluster("west")},
    )
    findings = compare(before, after).findings
    assert [(change.effect, change.clusters, change.text) for change in findings] == [
        ("lost", ("east",), "its addresses 10.20.0.0/16"),
        ("lost", ("north",), "it is no longer reached, and reaches nothing here: all connections end"),
        ("gained", ("east",), "its addresses 10.9.0.0/16, 10.100.0.0/16"),
        ("gained", ("west",), "can be reached"),
    ]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (forecast(clusters={"east": cluster()}), forecast(clusters={"east": cluster(snat=True)}), "start using"),
        (forecast(clusters={"east": cluster(snat=True)}), forecast(clusters={"east": cluster()}), "stop using"),
        (
            forecast(clusters={"east": cluster()}),
            forecast(clusters={"east": cluster()}, published=()),
            "start using",
        ),
        (
            forecast(clusters={"east": cluster(snat=True)}),
            forecast(clusters={"east": cluster(snat=True)}, published=()),
            "",
        ),
    ],
)
def test_a_change_of_translation_ends_connections_of_pods(before: Forecast, after: Forecast, words: str) -> None:
    """It follows from the other cluster's rules, and from the Pod CIDRs that this cluster publishes."""
    text = f"Pods {words} their gateway's address there: their open connections end"
    assert changes(before, after) == ([("broken", text)] if words else [])


# --- connections

HALVES = paths(("a", FAR, 1, 2), ("b", FAR, 1, 2))
TRANSLATED = "connections that the gateway translates end with it"
RESET = "their clients get a reset"


def shifts(before: Forecast, after: Forecast) -> list[tuple[str, float | None, str]]:
    """Return effect, share and text of the changes of connections."""
    return [(change.effect, change.share, change.text) for change in compare(before, after).findings]


def test_connections_of_a_gateway_that_goes_move_to_the_other() -> None:
    """Those that it translates end; shares are shown by gateway."""
    before, after = connected(HALVES), connected(paths(("b", FAR, 1, 1)))
    broken, moved = compare(before, after).findings
    assert (broken.effect, broken.share, broken.nodes, broken.clusters) == ("broken", 0.5, ("w1", "w2"), ("east",))
    assert broken.text == f"{TRANSLATED} (those of processes on the host's network are): {RESET}"
    assert (broken.before, broken.after) == ({}, {})
    assert (moved.effect, moved.share, moved.text) == ("moved", 0.5, "connections go another way and stay open")
    assert (moved.before, moved.after) == ({"a": 0.5, "b": 0.5}, {"b": 1.0})
    assert (moved.nodes, moved.clusters) == (("w1", "w2"), ("east",))


def test_where_all_connections_are_translated_none_moves() -> None:
    """All of the gateway's connections end."""
    before, after = connected(HALVES, snat=True), connected(paths(("b", FAR, 1, 1)), snat=True)
    assert shifts(before, after) == [("broken", 0.5, f"{TRANSLATED} (all of these are): {RESET}")]


@pytest.mark.parametrize("snat", [False, True])
def test_connections_to_another_remote_gateway_stay_open(snat: bool) -> None:
    """The gateway here, which translates them, is the same; shares are shown by remote gateway."""
    before = connected(paths(("a", FAR, 1, 2), ("a", "203.0.113.2", 1, 2)), snat=snat)
    after = connected(paths(("a", "203.0.113.2", 1, 1)), snat=snat)
    (moved,) = compare(before, after).findings
    assert (moved.effect, moved.share) == ("moved", 0.5)
    assert (moved.before, moved.after) == ({FAR: 0.5, "203.0.113.2": 0.5}, {"203.0.113.2": 1.0})


def test_connections_without_a_gateway_are_lost() -> None:
    """They do not also move or break; and the other way round they find a gateway."""
    before, after = connected(HALVES), connected(paths(("b", FAR, 1, 2)))
    assert shifts(before, after) == [("lost", 0.5, "connections there, and answers from here, reach no gateway")]
    assert shifts(after, before) == [("gained", 0.5, "connections there find a gateway")]
    assert shifts(before, before) == []


def test_a_gateway_with_another_address_breaks_what_it_translates() -> None:
    """The way is the same; the source is another one."""
    after = connected({EgressPath("a", "another", FAR): Fraction(1)})
    broken, moved = compare(connected(paths(("a", FAR, 1, 1))), after).findings
    assert (broken.effect, broken.share) == ("broken", 1.0)
    assert (moved.before, moved.after) == ({FAR: 1.0}, {FAR: 1.0})


def test_equal_changes_of_clusters_and_nodes_are_one() -> None:
    """Clusters with a change on the same Nodes together, others apart; a place without a path loses nothing."""
    one_way, other_way = paths(("b", FAR, 1, 1)), paths(("a", FAR, 1, 1))
    clusters = {name: cluster(name) for name in ("east", "north", "west")}
    places = {"w2": WORKERS, "w1": WORKERS, "g": "g", "new": "new"}
    before = forecast(
        clusters=clusters,
        places=places,
        paths={WORKERS: dict.fromkeys(clusters, one_way), "g": {"west": one_way}},
    )
    after = forecast(
        clusters=clusters,
        places={name: place for name, place in places.items() if name != "new"},
        paths={WORKERS: {"east": other_way, "north": other_way}},  # none of "g"
    )
    findings = [(change.effect, change.nodes, change.clusters) for change in compare(before, after).findings]
    assert findings == [
        ("lost", ("g", "w1", "w2"), ("west",)),
        ("broken", ("w1", "w2"), ("east", "north")),
        ("moved", ("w1", "w2"), ("east", "north")),
    ]


def test_connections_that_others_open_come_in_by_the_gateways_that_are_left() -> None:
    """Without one no cluster can connect; where none was, there is nothing to lose."""
    halves = {"a": Fraction(1, 2), "b": Fraction(1, 2)}
    before, after = forecast(arriving=halves), forecast(arriving={"b": Fraction(1)})
    (moved,) = compare(before, after).findings
    assert (moved.effect, moved.share, moved.before, moved.after) == (
        *("moved", 0.5),
        {"a": 0.5, "b": 0.5},
        {"b": 1.0},
    )
    assert moved.text == "connections that other clusters open here come in another way and stay open"
    assert changes(before, forecast()) == [("lost", "no other cluster can connect here: no gateway is left")]
    assert changes(forecast(), before) == []
    assert changes(before, forecast(arriving=dict(halves))) == []


# --- Services, policies, problems


def ends(*addresses: str) -> frozenset[tuple[IPv4Address, int]]:
    """Return endpoints."""
    return frozenset((IPv4Address(address), 80) for address in addresses)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (
            ends("10.1.0.1", "10.1.0.2", "10.1.0.3"),
            ends("10.1.0.1", "10.1.0.4"),
            ("broken", "2 of its 3 endpoints are left: connections to the others end", 2 / 3),
        ),
        (ends("10.1.0.1"), ends(), ("lost", "no endpoint is left", 1.0)),
        (ends("10.1.0.1"), None, ("lost", "no endpoint is left", 1.0)),
        (ends("10.1.0.1"), ends("10.1.0.1", "10.1.0.2"), ("noted", "2 endpoints in place of 1", None)),
        (ends(), ends("10.1.0.1"), ("gained", "1 endpoints in place of 0", None)),
        (None, ends("10.1.0.1"), ("gained", "1 endpoints in place of 0", None)),
        (None, ends(), ("noted", "is exported, without an endpoint", None)),
        (ends(), None, ("noted", "is withdrawn", None)),
        (ends("10.1.0.1"), ends("10.1.0.1"), None),
    ],
)
def test_an_exported_service_changes_with_its_endpoints(
    before: frozenset[Any] | None, after: frozenset[Any] | None, change: tuple[str, str, float | None] | None
) -> None:
    """The share is that of the endpoints that go."""
    views = [forecast(exports={} if view is None else {"shop/web:80": view}) for view in (before, after)]
    findings = [(c.effect, c.text, c.share) for c in compare(*views).findings]
    if change is None:
        assert findings == []
        return
    effect, text, share = change
    between = " " if text.startswith("is ") else ": "
    assert findings == [(effect, f"exported Service shop/web:80{between}{text}", share)]


def importing(counts: Mapping[str, int], *reachable: str) -> Forecast:
    """Return a forecast with endpoints of an imported Service, and the clusters that a gateway reaches."""
    part = paths(("a", FAR, 1, 1))
    return forecast(imports={"shop/web": counts}, paths={WORKERS: {**dict.fromkeys(reachable, part), "dead": {}}})


def test_an_imported_service_loses_the_endpoints_of_a_cluster() -> None:
    """Of a cluster that no gateway reaches as of one that has none; this cluster's own are always there."""
    before = importing({"east": 2, "west": 1, "home": 3, "dead": 9}, "east", "west")
    for after in (importing({"west": 1, "home": 3}, "west"), importing({"east": 2, "west": 1, "home": 3}, "west")):
        (broken,) = [change for change in compare(before, after).findings if change.effect == Effect.BROKEN]
        assert broken.text == (
            "imported Service shop/web: its endpoints there; new connections get one in west, home"
        )
        assert (broken.clusters, broken.share) == (("east",), 1 / 3)
    nowhere = importing({})
    two = importing({"east": 2, "west": 1}, "east", "west")
    (loss,) = compare(two, nowhere).findings
    assert (loss.effect, loss.clusters) == ("lost", ("east", "west"))
    assert loss.text == "imported Service shop/web: its endpoints were all in east, west"
    (gained,) = compare(nowhere, two).findings
    assert (gained.effect, gained.clusters) == ("gained", ("east", "west"))
    assert gained.text == "imported Service shop/web: endpoints there"
    moved = compare(importing({"east": 2}, "east"), importing({"west": 2}, "west")).findings
    assert [change.effect for change in moved] == ["broken", "gained"]
    assert compare(before, before).nothing


def test_rules_and_problems_that_come_and_go_are_noted() -> None:
    """In order, the new ones first."""
    rules = {
        number: PolicyRuleName(
            policy=f"p{number}", rule="" if number == 1 else "r", direction="egress", verdict="drop"
        )
        for number in (1, 2, 3)
    }
    problems = tuple(
        Problem(f"Gateway {name}", "spec.x", "Invalid", "is wrong", Severity.WARNING) for name in "ba"
    )
    bare = forecast(NodeState(policy_rules={3: rules[3]}))
    full = forecast(NodeState(policy_rules={9: rules[3], 2: rules[2], 1: rules[1]}), problems=problems)
    applies = "applies on this Node; one that forbids also ends open connections"
    assert changes(bare, full) == [
        (
            "noted",
            f"rule (unnamed) of p1 (egress, drop) {applies}",
        ),
        ("noted", f"rule r of p2 (egress, drop) {applies}"),
        ("noted", "new warning: Gateway a: spec.x: is wrong [Invalid]"),
        ("noted", "new warning: Gateway b: spec.x: is wrong [Invalid]"),
    ]
    assert changes(full, bare) == [
        ("noted", "rule (unnamed) of p1 (egress, drop) is gone from this Node"),
        ("noted", "rule r of p2 (egress, drop) is gone from this Node"),
        ("noted", "no longer a problem: Gateway a: spec.x: is wrong [Invalid]"),
        ("noted", "no longer a problem: Gateway b: spec.x: is wrong [Invalid]"),
    ]


def test_the_worst_changes_come_first() -> None:
    """Lost, broken, moved, gained, noted; a plan alone is a change, too."""
    before = connected(HALVES, gateways={"a": gateway("a")}, exports={"s": ends("10.1.0.1")})
    after = connected(paths(("b", FAR, 1, 1)), exports={"t": ends("10.1.0.1")})
    effects = [effect for effect, _ in changes(before, after)]
    assert effects == ["lost", "broken", "moved", "gained", "noted"]
    assert not compare(before, after).nothing
    plan = diff_desired(Desired(fragments={}, problems=(), state=NodeState()), WITH_TUNNEL)
    assert not Comparison(findings=(), plan=plan).nothing
    assert Comparison(findings=(), plan=Plan()).nothing


# --- the answer

FRAGMENT = Fragment(owner="cluster/east", resources=(tunnel_port(7, "east", PeerKind.REMOTE),))
WITH_TUNNEL = Desired(fragments={"cluster/east": FRAGMENT}, problems=(), state=NodeState())
PLAN = diff_desired(Desired(fragments={}, problems=(), state=NodeState()), WITH_TUNNEL)
CHANGES = (
    ForecastChange(effect=Effect.LOST, text="lost there", share=0.25, nodes=("w1",), clusters=("east",)),
    ForecastChange(effect=Effect.BROKEN, text="ends", share=0.005, nodes=("w1",), clusters=("east", "west")),
    ForecastChange(
        effect=Effect.MOVED,
        text="moves",
        share=0.5,
        nodes=("a", "b", "c", "d", "w1"),
        clusters=("east", "west", "u", "v", "x"),
        before={"g2": 1.0},
        after={"g1": 0.5, "g2": 0.5},
    ),
    ForecastChange(effect=Effect.GAINED, text="is there", clusters=("north",)),
    ForecastChange(effect=Effect.NOTED, text="no longer a gateway", nodes=("g1",)),
)
COUNTS = {
    "west": {"opened": 10, "translated": 400, "arrived": 5},
    "east": {"opened": 100, "translated": 400, "arrived": 7},
    "none": {"opened": 4, "translated": 4, "arrived": 4},
}


def answer(*findings: ForecastChange, counts: Mapping[str, Mapping[str, int]] | None = None) -> list[str]:
    """Return the lines of an answer with these findings and a plan of one tunnel."""
    comparison = Comparison(findings=findings, plan=PLAN)
    return answer_text(["a", "b"], comparison, node="w1", silent={"y", "x"}, counts=counts).splitlines()


STEPS = "on Node w1 its agent would have flows, groups, tunnels and routes 1 added, 0 changed, 0 removed"


def test_the_answer_lists_changes_by_effect() -> None:
    """With clusters, Nodes and shares, four names at most; then what the agent would do."""
    assert answer(*CHANGES) == [
        "What if: a; b",
        "(already not answering: x)",
        "(already not answering: y)",
        "",
        "LOST",
        "  cluster east, from w1: 25 %: lost there",
        "",
        "BROKEN (open connections end, new ones work)",
        "  cluster east, west, from w1: under 1 %: ends",
        "",
        "MOVED",
        "  cluster east, west, u, v and 1 more, from a, b, c, d and 1 more: 50 %: moves",
        "      g1 0 % -> 50 %, g2 100 % -> 50 %",
        "",
        "GAINED",
        "  cluster north: is there",
        "",
        "ALSO",
        "  no longer a gateway",
        "",
        STEPS,
    ]


def test_the_answer_counts_open_connections_that_a_change_concerns() -> None:
    """By the largest share of this Node's own connections to the cluster; without counts there is no list."""
    lines = answer(*CHANGES, CHANGES[0], counts=COUNTS)
    affected = "about 50 move, about 2 translated ones end, about 25 are lost"
    assert lines[lines.index("open TCP connections that Node w1 tracks:") + 1 : -2] == [
        f"  cluster east: 100 opened here, 7 from there, {affected}",
        "  cluster none: 4 opened here, 4 from there",
        "  cluster west: 10 opened here, 5 from there, about 5 move, about 2 translated ones end",
    ]
    elsewhere = ForecastChange(effect=Effect.MOVED, text="x", share=1.0, nodes=("w2",), clusters=("east",))
    assert "  cluster east: 100 opened here, 7 from there" in answer(elsewhere, counts=COUNTS)
    whole = ForecastChange(effect=Effect.MOVED, text="x", nodes=("w1",), clusters=("east",))
    assert "  cluster east: 100 opened here, 7 from there" in answer(whole, counts=COUNTS)
    assert not [line for line in answer(*CHANGES) if "open TCP" in line]


def test_an_answer_without_changes_says_so() -> None:
    """At all, or of connections."""
    assert answer()[3:] == ["", "nothing changes for any connection", "", STEPS]
    nothing = answer_text(["a"], Comparison(findings=(), plan=Plan()), node="w1", silent=(), counts=COUNTS)
    assert nothing == "What if: a\n\nnothing changes"


def test_the_steps_of_the_plan_are_counted_by_kind() -> None:
    """Removed as added ones."""
    removal = diff_desired(WITH_TUNNEL, Desired(fragments={}, problems=(), state=NodeState()))
    text = answer_text([], Comparison(findings=CHANGES[:1], plan=removal), node="w1", silent=(), counts=None)
    assert text.endswith(" 0 added, 0 changed, 1 removed")


def test_programs_get_the_answer_as_values() -> None:
    """The same findings, counts and plan."""
    comparison = Comparison(findings=CHANGES, plan=PLAN)
    report = api_forecast(["a"], comparison, node="w1", silent={"y", "x"}, counts=COUNTS)
    assert (report.what_if, report.node, report.already_silent) == (("a",), "w1", ("x", "y"))
    assert (report.findings, report.nothing_changes) == (CHANGES, False)
    assert report.connections == COUNTS
    assert report.plan.counts == {"add": 1, "replace": 0, "delete": 0}
    nothing = api_forecast([], Comparison(findings=(), plan=Plan()), node="w1", silent=(), counts=None)
    assert (nothing.nothing_changes, nothing.connections) == (True, None)


def test_the_networks_of_this_cluster_are_no_part_of_a_forecast() -> None:
    """Only whether Pods keep their addresses in other clusters."""
    before = forecast(clusters={"east": cluster()}, published=PODS)
    after = forecast(clusters={"east": cluster()}, published=(ip_network("10.11.0.0/16"),))
    assert compare(before, after).nothing
