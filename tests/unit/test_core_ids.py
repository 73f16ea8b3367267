"""Numbers and names that follow from names alone, so that all Nodes of all versions have the same; fair shares."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mcagent.core import ids
from mcagent.core.causes import CAUSES, remedy
from mcagent.core.ids import assign_ids, assign_ofports, name_hash, tunnel_port_name
from mcagent.core.shares import max_min_shares

NAMES = st.lists(st.text("abc", max_size=6), unique=True, max_size=12)


def test_numbers_of_names() -> None:
    """Other Nodes, and agents of other versions, compute these values too: they must never change."""
    assert name_hash("east") == 7771847548117023130
    assert name_hash("\ud800") == 10495218615758184372
    assert assign_ids(["west", "east"]) == {"east": 2625656, "west": 528080}
    assert tunnel_port_name("mcn-", "a", 1) == "mcn-05a9c569a18"
    assert tunnel_port_name("mcn-", "a1") != tunnel_port_name("mcn-", "a", 1)
    assert len(tunnel_port_name("mcr-", "\ud800")) == 15
    assert assign_ofports(["b", "a"], {}) == {"a": 58825, "b": 46565}


@given(NAMES, st.integers(12, 20))
def test_ids_are_distinct(names: list[str], largest: int) -> None:
    """They are from 1 to the largest, whatever the order of names; the first in order has its hash."""
    assigned = assign_ids(names, largest)
    assert set(assigned) == set(names)
    assert len(set(assigned.values())) == len(names)
    assert all(1 <= number <= largest for number in assigned.values())
    assert assign_ids(reversed(names), largest) == assigned
    if names:
        assert assigned[min(names)] == name_hash(min(names)) % largest + 1


def test_all_ids_can_be_assigned() -> None:
    """A collision takes the next free ID, after the largest the first; one name more is an error."""
    names = [f"n{number}" for number in range(7)]
    assert sorted(assign_ids(names, 7).values()) == list(range(1, 8))
    expected: dict[str, int] = {}
    for name in names:
        number = name_hash(name) % 7 + 1
        while number in expected.values():
            number = number % 7 + 1
        expected[name] = number
    assert assign_ids(names, 7) == expected
    with pytest.raises(OverflowError, match=r"^more than 7 names need an ID$"):
        assign_ids([*names, "n7"], 7)


@given(NAMES, st.dictionaries(st.text("abc", max_size=6), st.integers(0, 65_100), max_size=6))
def test_port_numbers_are_distinct(names: list[str], in_use: dict[str, int]) -> None:
    """Present ports keep their numbers; new ports have none that is in use, or that is the host's."""
    assigned = assign_ofports(names, in_use)
    assert set(assigned) == set(names)
    assert len(set(assigned.values())) == len(names)
    assert all(ids.FIRST_OFPORT <= number <= ids.LAST_OFPORT for number in assigned.values())
    for name, number in assigned.items():
        if in_use.get(name) != number:
            assert number not in in_use.values()
    assert assign_ofports(reversed(names), in_use) == assigned


@pytest.mark.parametrize(
    ("number", "is_kept"), [(1, False), (2, True), (65_000, True), (65_001, False), (0, False)]
)
def test_port_numbers_that_are_kept(number: int, is_kept: bool) -> None:
    """A number outside the range of tunnel ports is not kept."""
    assert (assign_ofports(["a"], {"a": number})["a"] == number) is is_kept


def test_conflicts_of_port_numbers() -> None:
    """Of two ports with one number the first by name keeps it; a hash in use takes the next free number."""
    shared = assign_ofports(["a", "b"], {"a": 7, "b": 7})
    assert (shared["a"], shared["b"]) == (7, 46565)
    assert assign_ofports(["b"], {"x": 46565})["b"] == 46566
    assert assign_ofports(["b"], {"x": 46565, "y": 46566})["b"] == 46567


def test_too_many_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """More ports than numbers are an error; the number of the host counts as one in use."""
    monkeypatch.setattr(ids, "LAST_OFPORT", 6)
    names = [f"n{number}" for number in range(5)]
    assert set(assign_ofports(names[:4], {"n0": 5}).values()) <= {2, 3, 4, 5, 6}
    with pytest.raises(OverflowError, match=r"^more than 5 tunnel ports are wanted$"):
        assign_ofports(names, {})


# --- shares -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demands", "total", "shares"),
    [
        ({}, 10, {}),
        ({"a": 3}, 10, {"a": 3}),
        ({"a": 30}, 10, {"a": 10}),
        ({"a": 1, "b": 9, "c": 9}, 11, {"a": 1, "b": 5, "c": 5}),
        ({"a": 9, "b": 9}, 5, {"a": 3, "b": 2}),
        ({"b": 9, "a": 9, "c": 9}, 10, {"a": 4, "b": 3, "c": 3}),
        ({"a": 5, "b": 4}, 5, {"b": 3, "a": 2}),
        ({"a": 5, "b": 5}, 0, {"a": 0, "b": 0}),
    ],
)
def test_fair_shares(demands: dict[str, int], total: int, shares: dict[str, int]) -> None:
    """Small demands are met; the rest is divided evenly, and what remains goes to the first."""
    assert max_min_shares(demands, total) == shares


@given(st.dictionaries(st.text("abc", max_size=3), st.integers(0, 50), min_size=1), st.integers(0, 200))
def test_no_unmet_demand_has_a_smaller_share(demands: dict[str, int], total: int) -> None:
    """All is given that is asked for and there; an unmet demand has at most one less than any other."""
    assume(demands)
    shares = max_min_shares(demands, total)
    assert sum(shares.values()) == min(total, sum(demands.values()))
    for key, share in shares.items():
        assert 0 <= share <= demands[key]
        if share < demands[key]:
            assert max(shares.values()) <= share + 1


# --- causes -----------------------------------------------------------------------------------------------


def test_what_to_do_about_a_problem() -> None:
    """Each known reason has a text; others have none."""
    for reason, cause in CAUSES.items():
        assert remedy(reason) == cause.do != ""
    assert remedy("Unknown") == ""
