"""What the limits of policies rest on: networks without exceptions, and fair shares."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network

from hypothesis import given
from hypothesis import strategies as st

from mcagent.core.policies.networks import remaining, remaining_count
from mcagent.core.shares import max_min_shares

SPACE = 6  # bits: all networks lie in a /26 or a /122, whose addresses can be counted


def network(six: bool, length: int, value: int) -> IPv4Network | IPv6Network:
    """Return a network of a small space by the length of its prefix beyond the space's."""
    base, bits = (int(ip_network("2001:db8::/122")[0]), 128) if six else (int(ip_network("10.0.0.0/26")[0]), 32)
    host = SPACE - length
    make = IPv6Network if six else IPv4Network
    return make((base | value % 64 >> host << host, bits - host))


small = st.builds(network, st.just(False), st.integers(0, SPACE), st.integers(0, 63))
small_six = st.builds(network, st.just(True), st.integers(0, SPACE), st.integers(0, 63))


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
