"""What a member may claim: annotations of its ServiceAccount, defaults, and what cannot be read."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.config.reader import ConfigError
from mcagent.controller.config import ControllerRole, load
from mcagent.controller.leader.exports.bounds import (
    Bounds,
    annotation_errors,
    bounds_of_accounts,
    defaults_of,
    named_namespaces,
    read_bounds,
    refuse_namespace,
    too_large,
)
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.kube.source import RawObject
from mcagent.model.api.kubernetes import ServiceAccount
from tests.worlds.leader_world import FLAT, Leader, endpoints, service
from tests.worlds.leader_world import account as account_json
from tests.worlds.memory_objects import typed

DEFAULTS = defaults_of(MemberLimits(max_exports=10, allowed_namespaces=("shop",), allowed_cidrs=("10.0.0.0/8",)))
OPEN = defaults_of(MemberLimits())


def account(cluster: str, **annotations: str) -> ServiceAccount:
    """Return the ServiceAccount of a member."""
    typed_account: ServiceAccount = typed(account_json(cluster, **annotations))
    return typed_account


def test_an_account_that_says_nothing_has_the_defaults() -> None:
    """And the defaults bound nothing but the number, unless they are configured."""
    assert read_bounds(account("east"), DEFAULTS) == DEFAULTS
    assert Bounds(max_exports=1000) == OPEN


def test_annotations_come_before_the_defaults() -> None:
    """Each one for itself; a star allows all that other rules do, an empty list nothing."""
    bounds = read_bounds(account("east", allowed_namespaces=" pay , shop,", max_exports="3"), DEFAULTS)
    assert bounds == Bounds(cidrs=DEFAULTS.cidrs, namespaces=frozenset({"pay", "shop"}), max_exports=3)
    free = read_bounds(account("east", allowed_namespaces="*", allowed_cidrs="*"), DEFAULTS)
    assert (free.namespaces, free.cidrs) == (None, None)
    no_bounds = read_bounds(account("east", allowed_namespaces="", allowed_cidrs=""), OPEN)
    assert (no_bounds.namespaces, no_bounds.cidrs, no_bounds.problem) == (frozenset(), (), "")


@pytest.mark.parametrize(
    "bad",
    [
        {"allowed_cidrs": "10.97.0.0/16 10.98.0.0/16"},
        {"allowed_cidrs": "10.97.0.1/16"},
        {"allowed_cidrs": "10.97.0.0/16,all"},
        {"allowed_namespaces": "shop,Pay"},
        {"allowed_namespaces": "shop;pay"},
        {"allowed_namespaces": ",".join(f"n{i}" for i in range(5000))},
        {"max_exports": ""},
        {"max_exports": "-1"},
        {"max_exports": "many"},
        {"max_exports": "1e9"},
        {"max_exports": "9999999"},
    ],
)
def test_what_cannot_be_read_allows_nothing(bad: dict[str, str]) -> None:
    """A slip must not open what was meant to be bounded; it is told with the account's name and the annotation."""
    bounds = read_bounds(account("east", **bad), OPEN)
    assert (bounds.cidrs, bounds.namespaces, bounds.max_exports) == ((), frozenset(), 0)
    (key,) = bad
    assert f"ServiceAccount mcs/east: annotation mcagent.io/{key.replace('_', '-')}" in bounds.problem
    assert refuse_namespace("east", "shop", bounds, frozenset()) == bounds.problem


def test_a_named_namespace_is_reserved() -> None:
    """Also by an account in which something else is wrong: its own member loses, but nobody else gains."""
    broken = account("east", allowed_namespaces="shop,Pay", max_exports="x")
    assert named_namespaces(broken) == {"shop"}
    assert named_namespaces(account("east", allowed_namespaces="*")) == frozenset()
    assert not refuse_namespace("east", "shop", OPEN, frozenset({"east"}))
    assert "reserved" in refuse_namespace("west", "shop", OPEN, frozenset({"east"}))
    assert not refuse_namespace("west", "other", OPEN, frozenset())
    only = read_bounds(account("east", allowed_namespaces="shop"), OPEN)
    assert "names it" in refuse_namespace("east", "other", only, frozenset())


def test_all_accounts_of_a_member_count() -> None:
    """Two tokens of one member, while one replaces the other, allow what both do."""
    first_account = account(
        "east", allowed_cidrs="10.0.0.0/8,192.168.0.0/16", allowed_namespaces="shop,pay", max_exports="5"
    )
    other = account("east", allowed_cidrs="10.20.0.0/16", allowed_namespaces="pay")
    bounds = bounds_of_accounts([first_account, other], OPEN)
    assert bounds.cidrs == (ip_network("10.20.0.0/16"),)
    assert (bounds.namespaces, bounds.max_exports) == (frozenset({"pay"}), 5)
    assert bounds_of_accounts([first_account, account("east")], OPEN) == read_bounds(first_account, OPEN)
    assert bounds_of_accounts([], DEFAULTS) == DEFAULTS
    assert bounds_of_accounts([first_account, account("east", max_exports="x")], OPEN).problem


def test_cidrs_are_judged_by_the_bounds() -> None:
    """A CIDR must lie in one that is allowed as a whole; the other family never does."""
    bounds = read_bounds(account("east", allowed_cidrs="10.96.0.0/12"), OPEN)
    assert bounds.allows_network(ip_network("10.97.0.0/16"))
    assert not bounds.allows_network(ip_network("10.0.0.0/8"))
    assert not bounds.allows_network(ip_network("fd00::/64"))
    assert OPEN.allows_network(ip_network("192.0.2.0/24"))


def test_gateways_are_judged_by_the_bounds() -> None:
    """The address of a gateway must lie in a CIDR that is allowed for gateways, not for networks."""
    bounds = read_bounds(account("east", allowed_gateways="192.0.2.0/28", allowed_cidrs="10.0.0.0/8"), OPEN)
    assert bounds.allows_gateway(ip_network("192.0.2.15/32"))
    assert not bounds.allows_gateway(ip_network("192.0.2.16/32"))
    assert not bounds.allows_gateway(ip_network("10.0.0.1/32"))
    assert not read_bounds(account("east", allowed_gateways=""), OPEN).allows_gateway(ip_network("192.0.2.1/32"))
    assert OPEN.allows_gateway(ip_network("192.0.2.1/32"))


@given(
    st.dictionaries(
        st.sampled_from(["mcagent.io/allowed-cidrs", "mcagent.io/allowed-namespaces", "mcagent.io/max-exports"]),
        st.text(max_size=40) | st.sampled_from(["*", "10.0.0.0/8", "shop", "5", "0.0.0.0/0"]),
    )
)
def test_any_text_is_read_or_told(notes: dict[str, str]) -> None:
    """Whatever stands there: it is either told what is wrong, and nothing allowed, or read."""
    raw = account_json("east")
    raw["metadata"]["annotations"] |= notes
    bounds = read_bounds(typed(raw), OPEN)
    assert bool(bounds.problem) == bool(annotation_errors(notes))
    if bounds.problem:
        assert (bounds.cidrs, bounds.namespaces, bounds.max_exports) == ((), frozenset(), 0)


# --- the leader's configuration, and what a change touches ---------------------------------------------------


def test_the_configuration_says_what_all_members_may_claim(tmp_path: Path) -> None:
    """Keys below `members` become the limits of the leader."""
    file = tmp_path / "controller.yaml"
    file.write_text(
        "members: {maxExports: 7, maxEndpoints: 5, maxExportBytes: 5000, allowedNamespaces: [shop, pay], "
        "allowedCIDRs: [10.0.0.0/8], refuseConflicts: true}\n"
        "allowedEndpointCIDRs: [10.9.0.0/16]\nmaxImportedServices: 9\n"
    )
    settings = load(ControllerRole.LEADER, file, {}, {})
    assert settings.leader.limits == MemberLimits(
        max_exports=7,
        allowed_namespaces=("shop", "pay"),
        allowed_cidrs=("10.0.0.0/8",),
        max_export_bytes=5000,
        max_endpoints=5,
        refuse_conflicts=True,
    )
    assert settings.leader.allowed_endpoint_cidrs == ("10.9.0.0/16",)
    assert settings.member.max_imported_services == 9


@pytest.mark.parametrize("bad", ["allowedNamespaces: [Shop]", "allowedNamespaces: shop", "maxExports: -1"])
def test_a_configuration_that_cannot_be_is_refused(tmp_path: Path, bad: str) -> None:
    """The controller does not start with bounds that it cannot read."""
    file = tmp_path / "controller.yaml"
    file.write_text(f"members: {{{bad}}}\n")
    with pytest.raises(ConfigError):
        load(ControllerRole.LEADER, file, {}, {})


def test_a_change_calls_for_as_few_exports_as_it_can() -> None:
    """One export is one look, two at the limit; an account its member's exports and those of its namespaces."""
    settings = LeaderSettings(namespace="", allowed_endpoint_cidrs=FLAT, limits=MemberLimits(max_exports=20))
    leader = Leader("east", "west", settings=settings)
    leader.put(account_json("east"), account_json("west"))
    for number in range(19):
        leader.clock.forward(1)
        leader.put(service("east", f"shop/s{number}"), endpoints("east", [f"10.1.0.{number}"], f"shop/s{number}"))
    leader.put(service("west", "lab/x"))

    def looks(*objects: RawObject) -> int:
        done = leader.controller.looks
        leader.put(*objects)
        return leader.controller.looks - done

    merge = next(r for r in leader.controller.reconcilers if r.name == "service-merge")
    leader.controller.reconcilers = (merge,)
    few = looks(endpoints("east", ["10.1.0.99"], "shop/s3"))
    assert few <= 6  # and what its own writes call for
    assert looks(service("east", "shop/s19")) <= 2 * few
    assert looks(service("east", "shop/s20")) <= 2 * few
    assert looks(account_json("west", max_exports="5")) <= few
    assert looks(account_json("west", max_exports="5")) == 0
    assert looks(account_json("east", allowed_namespaces="lab")) >= 20


def test_a_size_is_that_of_the_json() -> None:
    """To the byte, as it is sent."""
    for value in ({"a": [1, 22, -333, True, None, "ä\n"], "b": {"c": "x" * 50}}, ["x"] * 100, 1.5, "\x00"):
        exact = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
        assert too_large(value, "Service", exact) == ""
        assert f"larger than {exact - 1} bytes" in too_large(value, "Service", exact - 1)
