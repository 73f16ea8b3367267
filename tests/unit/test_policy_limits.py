"""The limits of policies, and what they rest on: networks without exceptions, and fair shares."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.policies.limits import MAX_RULES, Needs, needs_of, refusals, substitutes
from mcagent.core.policies.networks import remaining, remaining_count
from mcagent.core.policies.rules import LocalRule
from mcagent.core.shares import max_min_shares
from mcagent.model.config import PolicyFailureMode
from mcagent.model.objects import Kind
from mcagent.model.policies import Direction, Policy, Verdict
from tests.worlds.core_inputs import meta

SPACE = 6  # bits: all networks lie in a /26 or a /122, whose addresses can be counted


def network(six: bool, length: int, value: int) -> IPv4Network | IPv6Network:
    """Return a network of a small space by the length of its prefix beyond the space's."""
    base, bits = (int(ip_network("2001:db8::/122")[0]), 128) if six else (int(ip_network("10.0.0.0/26")[0]), 32)
    host = SPACE - length
    make = IPv6Network if six else IPv4Network
    return make((base | value % 64 >> host << host, bits - host))


small = st.builds(network, st.just(False), st.integers(0, SPACE), st.integers(0, 63))
small_six = st.builds(network, st.just(True), st.integers(0, SPACE), st.integers(0, 63))


@pytest.mark.costly
@given(
    st.one_of(st.tuples(small, st.lists(small, max_size=8)), st.tuples(small_six, st.lists(small_six, max_size=8)))
)
def test_the_remaining_networks_have_all_other_addresses_and_are_the_fewest(
    case: tuple[IPv4Network | IPv6Network, list[IPv4Network | IPv6Network]],
) -> None:
    """An address remains if it is in the network and in no exception; no two of them could be one."""
    whole, exceptions = case
    networks = remaining(whole, exceptions)
    addresses = [address for remainder in networks for address in remainder]
    assert len(addresses) == len(set(addresses))
    assert set(addresses) == set(whole) - {address for exception in exceptions for address in exception}
    assert sorted(collapse_addresses(networks)) == list(networks)  # type: ignore[type-var]
    assert remaining_count(whole, exceptions) == len(networks)


@pytest.mark.parametrize(
    ("whole", "exceptions", "networks"),
    [
        ("10.0.0.0/30", [], ["10.0.0.0/30"]),
        ("10.0.0.0/30", ["10.0.0.1/32"], ["10.0.0.0/32", "10.0.0.2/31"]),
        ("10.0.0.0/30", ["10.0.0.1/32", "10.0.0.0/31"], ["10.0.0.2/31"]),
        ("10.0.0.0/29", ["10.0.0.1/32", "10.0.0.4/30"], ["10.0.0.0/32", "10.0.0.2/31"]),
        ("10.0.0.0/30", ["10.0.0.0/31", "10.0.0.2/31"], []),
        ("10.0.0.0/30", ["10.0.0.0/30"], []),
        ("10.0.0.0/30", ["10.0.0.0/8"], []),
        ("10.0.0.0/30", ["10.0.1.1/32", "fd00::/8"], ["10.0.0.0/30"]),
        ("10.0.0.0/32", ["10.0.0.0/32"], []),
        ("fd00::/126", ["fd00::3/128"], ["fd00::/127", "fd00::2/128"]),
    ],
)
def test_a_network_without_its_exceptions(whole: str, exceptions: list[str], networks: list[str]) -> None:
    """The networks beside each exception; one inside another changes nothing, nor does one elsewhere."""
    without = remaining(ip_network(whole), map(ip_network, exceptions))
    assert list(map(str, without)) == networks
    assert remaining_count(ip_network(whole), map(ip_network, exceptions)) == len(networks)


def test_exceptions_of_another_version_change_nothing() -> None:
    """An IPv6 network is not inside an IPv4 one."""
    assert remaining(IPv4Network("0.0.0.0/0"), [IPv6Network("::/0")]) == (IPv4Network("0.0.0.0/0"),)


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_shares_are_max_min_fair(demands: dict[str, int], total: int) -> None:
    """All that is demanded is divided, and a share below its demand is at most one below any other."""
    shares = max_min_shares(demands, total)
    assert shares.keys() == demands.keys()
    assert all(0 <= shares[key] <= demands[key] for key in demands)
    assert sum(shares.values()) == min(total, sum(demands.values()))
    unmet = [shares[key] for key in demands if shares[key] < demands[key]]
    assert all(share + 1 >= max(shares.values()) for share in unmet)


def test_small_demands_are_met_before_a_large_one() -> None:
    """One claimant that asks for everything takes nothing from those that ask for little."""
    assert max_min_shares({"greedy": 10_000, "a": 5, "b": 7}, 20) == {"a": 5, "b": 7, "greedy": 8}


POD, OTHER_POD = ip_address("10.10.1.5"), ip_address("10.10.1.6")


def policy_of(namespace: str, name: str, created: str, tier: str = "") -> Policy:
    """Return a policy without rules."""
    return Policy(meta=meta(Kind.NETWORK_POLICY, name, created, namespace), rules=(), tier=tier)


def local_rule(policy: str, order: tuple[float, ...], *pods: object, tier: str = "application") -> LocalRule:
    """Return a rule of a policy for Pods of this Node."""
    return LocalRule(
        key=f"{policy} {order}",
        policy=policy,
        name="",
        tier=tier,
        order=order,  # type: ignore[arg-type]
        direction=Direction.INGRESS,
        verdict=Verdict.ALLOW,
        pods=pods,  # type: ignore[arg-type]
        any_peer=True,
    )


def refused(needs: dict[str, Needs], *, per_policy: int = 100, per_namespace: int = 150) -> dict[str, str]:
    """Return why policies "NAMESPACE/NAME" are refused; the names are in the order in which they were made."""
    policies = {
        subject: policy_of(subject.partition("/")[0], subject.partition("/")[2], f"2026-01-{number:02}")
        for number, subject in enumerate(sorted(needs, key=lambda subject: subject.partition("/")[2]), 1)
    }
    problems = refusals(policies, needs, per_policy, per_namespace, PolicyFailureMode.CLOSED)
    assert {problem.reason for problem in problems.values()} <= {"NotEnforceable"}
    return {subject: problem.message for subject, problem in problems.items()}


def test_a_policy_above_its_limit_is_refused_alone() -> None:
    """At the limit it is enforced; above it, it takes nothing from others of its Namespace."""
    needs = {"shop/a": Needs(100, 1), "shop/b": Needs(101, 1), "shop/c": Needs(50, 1)}
    problems = refused(needs)
    assert problems.keys() == {"shop/b"}
    assert "needs 101 flows on this Node, at most 100 are allowed (maxPolicyFlows): " in problems["shop/b"]


def test_the_oldest_policies_of_a_namespace_come_first() -> None:
    """All flows of a Namespace count together; other Namespaces, and policies without one, do not."""
    needs = {"shop/a": Needs(60, 1), "shop/b": Needs(60, 1), "shop/c": Needs(31, 1), "shop/d": Needs(30, 1)}
    needs |= {"lab/e": Needs(100, 1), "/f": Needs(100, 1), "/g": Needs(100, 1)}
    problems = refused(needs)
    assert problems.keys() == {"shop/c"}
    assert "older policies of Namespace shop need 120: at most 150 are allowed" in problems["shop/c"]


def test_rules_are_divided_fairly_between_namespaces() -> None:
    """A Namespace with many rules gets what others leave; its oldest policies are enforced."""
    needs = {"greedy/a": Needs(1, MAX_RULES - 100), "greedy/b": Needs(1, 101), "shop/c": Needs(1, 100)}
    problems = refused(needs)
    assert problems.keys() == {"greedy/b"}
    assert f"its share of {MAX_RULES} is {MAX_RULES - 100}" in problems["greedy/b"]


def test_policies_of_the_cluster_come_before_those_of_namespaces() -> None:
    """Namespaces share what they leave, though it is less than their fair share, or nothing."""
    cluster = {f"/{number:02}": Needs(1, 200) for number in range(20)}
    tenants = {f"tenant-{number:02}/z": Needs(1, 300) for number in range(40)}
    assert refused({**cluster, **tenants}).keys() == tenants.keys()
    tenants["tenant-00/z"] = Needs(1, 60)
    some_policies = dict(list(cluster.items())[:8])
    assert refused({**some_policies, **tenants}).keys() == tenants.keys() - {"tenant-00/z"}
    problems = refused({**cluster, "/new": Needs(1, 1)})
    assert "older policies of the cluster have 4000: its share of 4000 is 4000" in problems["/new"]


def test_a_rule_needs_a_flow_for_each_pod_peer_and_port() -> None:
    """And one that joins them, none for endpoints; a rule for any peer and port needs only those of its Pods."""
    whole = local_rule("p", (1,), POD, OTHER_POD)
    assert needs_of(((3,), (whole,))) == Needs(2, 1)
    peers = replace(whole, any_peer=False, services=(("shop", "web"),))
    assert needs_of(((3,), (peers, peers))) == Needs(2 * (1 + 2 + 3), 2)


@pytest.mark.parametrize("mode", list(PolicyFailureMode))
def test_one_rule_replaces_those_of_refused_policies(mode: PolicyFailureMode) -> None:
    """For all Pods of the rules, by the first of them; closed it drops instead of a tier, open it allows else."""
    closed = mode is PolicyFailureMode.CLOSED
    tier = "application" if closed else ""
    policies = {name: policy_of("shop", name, "2026-01-01", tier) for name in ("a", "b")}
    rules = {
        "a": (local_rule("a", (250, 5.0, 1, 3), OTHER_POD, tier=tier),),
        "b": (local_rule("b", (250, 2.0, 7, 3), POD, tier=tier), local_rule("b", (250, 9.0, 0, 3), tier=tier)),
    }
    replaced = substitutes(rules, policies, mode)
    assert replaced.keys() == {"b"}
    (rule,) = replaced["b"]
    assert rule.pods == (POD, OTHER_POD)
    assert rule.verdict is (Verdict.DROP if closed else Verdict.ALLOW)
    assert rule.order == ((250, 2.0, 7, 0) if closed else (250, 2.0, 7, 3))
    assert (rule.any_peer, rule.ports, rule.selectors) == (True, (), ())
    other = substitutes(rules, policies, PolicyFailureMode.OPEN if closed else PolicyFailureMode.CLOSED)
    assert other == {}
