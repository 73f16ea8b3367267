"""The nft backend against the kernel, in a namespace of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from devtools.nodes import netns
from mcagent.core.fragments.imported import SLOTS, PortShares, ServiceShares, fragment, service_rules
from mcagent.core.fragments.kernel import encrypted_netfilter, netfilter
from mcagent.core.fragments.quoted import quoted_addresses, quoted_prefixes, quoted_rules
from mcagent.dataplane.nft.backend import NftBackend
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import NftChain, NftSet, Resource
from mcagent.model.errors import BackendError
from mcagent.model.net import Network, PodPrefix
from mcagent.model.node_state import AcceptedCluster
from tests.contract.inside import Inside, adds, as_mapping, make, steps_to
from tests.contract.suite import BackendContract, Case

pytestmark = pytest.mark.contract

TABLE = "mcagent"
BIT = "0x00001000"
SNAT = 'oifname "mc-gw0" ip saddr @mct_pods snat to ip saddr'
REPLY = f'iifname != "mc-gw0" ct direction reply ct mark & {BIT} == {BIT} meta mark set meta mark | {BIT}'
MSS = "tcp flags syn tcp option maxseg size set rt mtu"
FOREIGN = """
table ip mcagent2 {
  set mct_pods { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 } }
  chain mct_post { type nat hook postrouting priority 99; policy accept; ip saddr @mct_pods masquerade
 }
}
table inet mcagent {
  chain mct_pre { type filter hook prerouting priority 0; policy accept; counter; }
}
"""


def networks(*cidrs: str) -> tuple[Network, ...]:
    """Return networks from text."""
    return tuple(ip_network(cidr) for cidr in cidrs)


def pods(*cidrs: str) -> NftSet:
    """Return the set of Pod networks."""
    return NftSet(table=TABLE, name="mct_pods", elements=networks(*cidrs))


def chain(name: str, type_: str, hook: str, priority: int, *rules: str) -> NftChain:
    """Return a chain of our table."""
    return NftChain(table=TABLE, name=name, type=type_, hook=hook, priority=priority, rules=rules)


def everything(*cidrs: str) -> list[Resource]:
    """Return the table as core compiles it for a Node."""
    return [
        pods(*(cidrs or ("10.244.0.0/16", "10.245.7.7/32", "10.246.0.0/30"))),
        chain("mct_post", "nat", "postrouting", 99, SNAT),
        chain(
            "mct_pre",
            "filter",
            "prerouting",
            -151,
            f'iifname "mc-gw0" ct direction original ct mark set ct mark | {BIT}',
            REPLY,
        ),
        chain(
            "mct_out",
            "route",
            "output",
            -150,
            f"ct direction reply ct mark & {BIT} == {BIT} meta mark set meta mark | {BIT}",
        ),
        chain("mct_mss", "filter", "forward", -150, f'oifname "mc-gw0" {MSS}', f'iifname "mc-gw0" {MSS}'),
    ]


@pytest.fixture
def backend(fresh_namespace: str) -> Inside:
    """Give a backend that owns one table in a namespace of its own."""
    return Inside(fresh_namespace, NftBackend(table=TABLE))


def anew(backend: Inside) -> Inside:
    """Return a backend as an agent has it that was just started: it remembers nothing."""
    return Inside(backend.namespace, NftBackend(table=TABLE))


def nft(backend: Inside, text: str) -> None:
    """Let somebody else change nftables."""
    netns.execute(backend.namespace, ["nft", "-f", "-"], stdin=text)


def ruleset(backend: Inside, family: str, table: str) -> object:
    """Return a table as nft lists it."""
    argv = ["nft", "-j", "list", "table", family, table]
    return json.loads(netns.execute(backend.namespace, argv).stdout)


def handle(backend: Inside, chain_name: str, place: int) -> int:
    """Return the handle of a rule by its place in a chain."""
    listed = ruleset(backend, "ip", TABLE)
    assert isinstance(listed, dict)
    rules = [item["rule"] for item in listed["nftables"] if "rule" in item]
    return int([rule["handle"] for rule in rules if rule["chain"] == chain_name][place])


def test_an_agent_that_starts_again_finds_the_very_texts_that_were_asked_for(backend: Inside) -> None:
    """Everything core asks for comes back equal, also to a backend that never applied it."""
    resources = everything()
    make(backend, resources)
    assert backend.observe() == as_mapping(resources)
    assert steps_to(anew(backend).observe(), resources) == []


def test_nothing_is_there_before_the_first_step_and_after_the_last(backend: Inside) -> None:
    """Without a table observe is empty; deleting all leaves no table behind."""
    assert backend.observe() == {}
    make(backend, everything())
    make(backend, [])
    assert backend.observe() == {}
    assert netns.execute(backend.namespace, ["nft", "list", "tables"]).stdout == ""


class TestNft(BackendContract):
    """The contract that all backends keep."""

    @pytest.fixture
    def case(self, fresh_namespace: str, tmp_path: Path) -> Case:
        binary = tmp_path / "nft"
        path = shutil.which("nft")
        assert path is not None
        binary.symlink_to(path)
        backend = Inside(fresh_namespace, NftBackend(table=TABLE, binary=str(binary)))

        def foreign() -> object:
            return [ruleset(backend, "ip", "mcagent2"), ruleset(backend, "inet", TABLE)]

        base, *other_resources = everything()
        return Case(
            backend=backend,
            base=(base,),
            pool=(
                *other_resources,
                chain("mct_mss", "filter", "forward", -150, f'oifname "mc-gw1" {MSS}'),
                chain("mct_mss", "filter", "forward", -149, f'oifname "mc-gw1" {MSS}'),
                chain("mct_out", "route", "output", -150),
                NftSet(table=TABLE, name="mct_more", elements=networks("10.9.0.0/16")),
                NftSet(table=TABLE, name="mct_more", elements=()),
            ),
            refused=chain("mct_bad", "filter", "forward", -150, "ip saddr @nosuch accept"),
            add_foreign=lambda: nft(backend, FOREIGN),
            foreign=foreign,
            break_facility=binary.unlink,
        )


@pytest.mark.parametrize(
    "cidrs",
    [
        ("0.0.0.0/1", "128.0.0.0/1"),
        ("10.0.0.0/31", "10.0.0.3/32", "10.0.0.8/29", "255.255.255.255/32"),
        ("0.0.0.0/32", "10.1.0.0/25", "10.2.0.0/16"),
    ],
)
def test_elements_come_back_equal_whatever_nft_makes_of_them(backend: Inside, cidrs: Sequence[str]) -> None:
    """Addresses, prefixes and ranges are the same networks."""
    make(backend, everything(*cidrs))
    observed = anew(backend).observe()[pods().key]
    assert isinstance(observed, NftSet)
    flat = [address for network in observed.elements for address in (network[0], network[-1])]
    addresses = [address for network in networks(*cidrs) for address in (network[0], network[-1])]
    assert (min(flat), max(flat)) == (min(addresses), max(addresses))
    assert sum(n.num_addresses for n in observed.elements) == sum(n.num_addresses for n in networks(*cidrs))


def test_changed_rules_and_elements_replace_the_old_ones(backend: Inside) -> None:
    """After a change nothing of the old rules, elements and chains is left."""
    make(backend, everything())
    changed: list[Resource] = [
        pods("10.99.0.0/16"),
        chain("mct_post", "nat", "postrouting", 99, SNAT.replace("mc-gw0", "mc-gw1")),
        chain("mct_pre", "filter", "prerouting", -140, REPLY),
        chain("mct_fwd", "filter", "forward", -149),
    ]
    make(backend, changed)
    assert anew(backend).observe() == as_mapping(changed)


def test_ten_thousand_elements_come_back_equal(backend: Inside) -> None:
    """A large set is one transaction too."""
    resources: list[Resource] = [pods(*(f"10.{n // 256}.{n % 256}.0/25" for n in range(10_000)))]
    make(backend, resources)
    assert backend.observe() == as_mapping(resources)


def test_an_ipv6_table_works_alike(fresh_namespace: str) -> None:
    """The family is a parameter, not an assumption."""
    backend = Inside(fresh_namespace, NftBackend(table=TABLE))
    resources: list[Resource] = [
        NftSet(table=TABLE, name="mct_pods", elements=networks("fd00::/64", "fd01::1/128"), family="ip6"),
        NftChain(
            table=TABLE,
            name="mct_post",
            type="nat",
            hook="postrouting",
            priority=99,
            rules=('oifname "mc-gw0" ip6 saddr @mct_pods snat to ip6 saddr',),
            family="ip6",
        ),
    ]
    make(backend, resources)
    assert Inside(fresh_namespace, NftBackend(table=TABLE)).observe() == as_mapping(resources)


def test_the_tables_of_both_families_are_one_backend(fresh_namespace: str) -> None:
    """What keeps tunnel packets in, for gateways of both families; taken away, neither table is left."""
    backend = Inside(fresh_namespace, NftBackend(table=TABLE))
    resources = encrypted_netfilter(
        Config(node_name="g1"), ("mc-wg0", "mc-wg1"), networks("203.0.113.1/32", "2001:db8::/64")
    )
    make(backend, resources)
    assert backend.observe() == as_mapping(resources)
    assert {resource.family for resource in resources if isinstance(resource, NftChain)} == {"ip", "ip6"}
    make(backend, [])
    assert TABLE not in netns.execute(fresh_namespace, ["nft", "list", "tables"]).stdout


@pytest.mark.parametrize(
    "spoil",
    [
        "delete rule ip mcagent mct_pre handle {first}",
        "add rule ip mcagent mct_pre counter",
        "insert rule ip mcagent mct_pre ip saddr 192.0.2.1 drop",
        "replace rule ip mcagent mct_pre handle {first} " + REPLY,
        "replace rule ip mcagent mct_pre handle {first} counter",
        "add element ip mcagent mct_pods {{ 192.0.2.0/24 }}",
        "delete element ip mcagent mct_pods {{ 10.244.0.0/16 }}",
        "flush chain ip mcagent mct_mss",
        "add chain ip mcagent mct_own {{ type filter hook input priority 0; }}",
        "add chain ip mcagent plain",
        "add set ip mcagent mct_other {{ type inet_service; }}",
        "add chain ip mcagent mct_mss {{ type filter hook forward priority -150; policy drop; }}",
        "add table ip mcagent {{ flags dormant; }}",
        "delete table ip mcagent",
        "flush ruleset",
    ],
)
def test_what_somebody_changes_shows_as_a_difference_and_is_repaired(backend: Inside, spoil: str) -> None:
    """A missing, altered, extra or reordered rule, element or chain is noticed and put right."""
    resources = everything()
    make(backend, resources)
    nft(backend, spoil.format(first=handle(backend, "mct_pre", 0)) + "\n")
    observed = backend.observe()
    assert observed != as_mapping(resources)
    assert anew(backend).observe() == observed
    make(backend, resources)
    assert anew(backend).observe() == as_mapping(resources)


def test_reordered_rules_show_as_a_difference(backend: Inside) -> None:
    """The same rules in another order are not the same chain."""
    make(backend, everything())
    first = handle(backend, "mct_mss", 0)
    listing = netns.execute(backend.namespace, ["nft", "list", "chain", "ip", TABLE, "mct_mss"]).stdout
    rule = next(line.strip() for line in listing.splitlines() if "oifname" in line)
    nft(backend, f"delete rule ip mcagent mct_mss handle {first}\nadd rule ip mcagent mct_mss {rule}\n")
    key = chain("mct_mss", "filter", "forward", -150).key
    observed = backend.observe()[key]
    assert isinstance(observed, NftChain)
    assert list(observed.rules) == [f'iifname "mc-gw0" {MSS}', f'oifname "mc-gw0" {MSS}']


def test_a_rule_in_an_unknown_spelling_is_learnt_when_it_is_applied(backend: Inside) -> None:
    """A text that nft lists differently compares equal all the same while the agent runs."""
    resources: list[Resource] = [
        chain("mct_pre", "filter", "prerouting", -151, "ct mark & 0x1 == 0x1 counter packets 0 bytes 0")
    ]
    make(backend, resources)
    assert backend.observe() == as_mapping(resources)
    nft(backend, "flush chain ip mcagent mct_pre\nadd rule ip mcagent mct_pre counter\n")
    assert backend.observe() != as_mapping(resources)


def test_spellings_are_forgotten_with_their_rules(fresh_namespace: str) -> None:
    """Rules of imported Services change with each endpoint, for as long as the agent runs."""
    nft_backend = NftBackend(table=TABLE)
    backend = Inside(fresh_namespace, nft_backend)
    ipv6 = replace(chain("mct_pre", "filter", "prerouting", -151, "ct mark & 0x9 == 0x9"), family="ip6")
    for number in range(1, 5):
        ipv4 = chain("mct_pre", "filter", "prerouting", -151, f"ct mark & 0x{number} == 0x{number}")
        make(backend, [ipv4, ipv6])
        assert backend.observe() == as_mapping([ipv4, ipv6])
    assert len(nft_backend._requested) == 2


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("ip saddr @nosuch accept", "No such file"),
        ("this is no rule", "syntax error"),
        ("accept } chain y { drop", "syntax error"),
        ("ip saddr { 10.0.0.1 accept", "syntax error"),
        ('oifname "x accept', "syntax error"),
        ("snat to ip saddr", "not supported"),
        ("accept; drop", "not one rule"),
        ('accept comment "mine"', "not one rule"),
    ],
)
def test_a_refused_rule_is_named_and_the_rest_goes_in(backend: Inside, bad: str, words: str) -> None:
    """The error names chain and rule; the chain stays as it was; set and other chains are done."""
    before = chain("mct_pre", "filter", "prerouting", -151, REPLY)
    make(backend, [before])
    resources: list[Resource] = [
        chain("mct_pre", "filter", "prerouting", -151, REPLY, bad)
        if isinstance(r, NftChain) and r.name == "mct_pre"
        else r
        for r in everything()
    ]
    result = backend.apply(steps_to(backend.observe(), resources))
    (_, error), *other_failures = result.failed
    assert other_failures == []
    assert "chain mct_pre" in str(error)
    assert "rule 2" in str(error)
    assert words in str(error)
    other_resources = [r for r in resources if r.key != before.key]
    assert backend.observe() == as_mapping([before, *other_resources])


def test_a_step_outside_of_our_table_is_refused(backend: Inside) -> None:
    """A mistake above the backend reaches no foreign table, and no text leaves its place."""
    foreign = NftSet(table="mcagent2", name="mct_pods", elements=())
    sneaky = NftSet(table=TABLE, name="x { }; flush ruleset; add set ip t y", elements=())
    result = backend.apply(adds(foreign, sneaky))
    assert result.done == ()
    assert [error.retryable for _, error in result.failed] == [False, False]
    assert netns.execute(backend.namespace, ["nft", "list", "tables"]).stdout == ""


def test_a_missing_binary_is_told_as_what_it_is(fresh_namespace: str) -> None:
    """The error says what to install."""
    backend = Inside(fresh_namespace, NftBackend(table=TABLE, binary="nft-that-is-not-here"))
    with pytest.raises(BackendError, match="install nftables"):
        backend.observe()


def test_what_core_compiles_is_found_again(backend: Inside) -> None:
    """Every rule of core is written as this nft lists it, so that a backend which learnt nothing finds it."""
    for config in (Config(node_name="a1"), Config(node_name="a1", host_port="mcagent-gateway")):
        addresses = (("10.0.2.3", "254.0.14.2"), ("192.168.1.11", "254.168.195.10"))
        pairs = tuple((ip_address(source), ip_address(mapped)) for source, mapped in addresses)
        east = AcceptedCluster(cluster_id="east", cidrs=(), gateways=(), snat=False, mapped=pairs)
        clusters = {"west": replace(east, cidrs=networks("100.80.0.0/16", "100.80.0.0/20"))}
        cidrs = (
            ("10.244.0.0/16", "100.72.0.0/16"),
            ("10.128.32.0/20", "100.96.16.0/20"),
            ("10.0.0.0/9", "172.128.0.0/9"),
        )
        prefixes = tuple(PodPrefix(real=ip_network(a), virtual=ip_network(b)) for a, b in cidrs)
        of_pods = quoted_prefixes(prefixes, clusters)
        quoted = quoted_addresses(config, {"east": quoted_rules(east)}, of_pods)
        own = ((ip_address("192.0.2.10"),), networks("10.244.1.0/24", "10.244.9.0/24"))
        chains = [*netfilter(config, networks("10.244.0.0/16"), *own), *quoted]
        make(backend, chains)
        assert anew(backend).observe() == as_mapping(chains)


@pytest.mark.parametrize("by_client", [False, True])
def test_shares_of_imported_services_are_found_again(backend: Inside, by_client: bool) -> None:
    """Maps of one endpoint and of many, of one slot and of all, are listed as they are written."""
    config = Config(node_name="a1")
    many = tuple((ip_address(f"10.244.{n // 250}.{n % 250 + 1}"), 8080) for n in range(999))
    for ends in ((SLOTS,), (1, SLOTS), (*range(65, 65 + 998), SLOTS)):
        port = PortShares(
            address=ip_address("10.96.0.7"),
            protocol="tcp",
            port=80,
            by_client=by_client,
            shares=tuple(zip(ends, many, strict=False)),
        )
        rules = service_rules(ServiceShares(ports=(port,), own=(many[0][0],)), config)
        resources = list(fragment({"default/web": rules}, config).resources)
        make(backend, resources)
        assert anew(backend).observe() == as_mapping(resources)


def test_many_imported_services_come_change_and_go(backend: Inside) -> None:
    """The maps that lead to their chains are listed as they are written, and no step is refused on the way."""
    config = Config(node_name="a1")

    def resources(numbers: Iterable[int], port: int = 80) -> list[Resource]:
        names = {}
        for number in numbers:
            address = ip_address(f"10.96.{37 * (number % 7)}.{number // 7 + 100}")
            end = (SLOTS, (ip_address("10.244.1.2"), 8080))
            shares = PortShares(address=address, protocol="tcp", port=port, by_client=False, shares=(end,))
            names[f"default/s{number}"] = service_rules(ServiceShares(ports=(shares,)), config)
        return list(fragment(names, config).resources)

    for all_resources in (resources(range(600)), resources(range(599), 81), resources([7]), resources([])):
        make(backend, all_resources)
        assert anew(backend).observe() == as_mapping(all_resources)
