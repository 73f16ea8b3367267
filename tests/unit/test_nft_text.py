"""nft texts: what different versions list is read alike, and what is no rule does not get into a script."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from mcagent.dataplane.nft.apply import objection, script
from mcagent.dataplane.nft.observe import NftTable, parse_listing
from mcagent.model.dataplane.resources import NftChain, NftSet
from mcagent.model.plan import Step

TABLE = NftTable("ip", "mcagent")


def test_a_listing_is_read_with_all_that_nft_writes_into_it() -> None:
    """Handles, comments of tables, wrapped elements, ranges, element options, objects of other kinds."""
    listing = parse_listing(
        "table ip mcagent { # handle 7\n"
        '\tcomment "words"\n'
        "\tset mct_pods { # handle 1\n"
        "\t\ttype ipv4_addr\n"
        "\t\tflags interval\n"
        "\t\telements = { 10.1.0.0/16, 10.2.0.1,\n"
        "\t\t\t     10.3.0.0-10.3.1.255 counter packets 0 bytes 0,\n"
        "\t\t\t     10.4.0.4-10.4.0.6 }\n"
        "\t}\n\n"
        "\tmap other { # handle 9\n\t\ttype ipv4_addr : mark\n\t}\n\n"
        "\tchain mct_post { # handle 2\n"
        "\t\ttype nat hook postrouting priority 99; policy accept;\n"
        '\t\tip saddr @mct_pods snat to ip saddr comment "ours" # handle 6\n'
        "\t\tcounter # handle 8\n"
        "\t}\n\n"
        "\tchain plain { # handle 3\n"
        "\t}\n"
        "}\n",
        "ip",
        "mcagent",
    )
    assert listing.other_count == 1
    (pods,) = listing.sets
    assert (pods.name, pods.intact) == ("mct_pods", True)
    assert pods.elements == tuple(
        ip_network(cidr) for cidr in ("10.1.0.0/16", "10.2.0.1/32", "10.3.0.0/23", "10.4.0.4/31", "10.4.0.6/32")
    )
    post, plain = listing.chains
    assert (post.type, post.hook, post.priority, post.intact) == ("nat", "postrouting", 99, True)
    assert post.rules == ('ip saddr @mct_pods snat to ip saddr comment "ours"', "counter")
    assert (plain.type, plain.rules) == ("", ())


def test_pairs_of_address_and_port_are_read_and_counters_summed() -> None:
    """By chain; what does not count is left out. A pair that is none of ours (a range of ports) is passed over."""
    listing = parse_listing(
        "table ip6 mcagent { # handle 7\n"
        "\tset mct_wireguard { # handle 1\n"
        "\t\ttypeof ip6 daddr . udp dport\n"
        "\t\telements = { 2001:db8::2 . 4,\n"
        "\t\t\t     2001:db8::1 . 51821, 2001:db8::3 . 4-5 }\n"
        "\t}\n\n"
        "\tchain mct_to_tunnel { # handle 2\n"
        "\t\ttype filter hook forward priority -150; policy accept;\n"
        "\t\tudp dport 1 counter packets 3 bytes 90 drop # handle 6\n"
        "\t\tudp dport 2 counter packets 4 bytes 90 drop # handle 8\n"
        "\t}\n\n"
        "\tchain mct_pre { # handle 3\n"
        "\t\ttype filter hook prerouting priority -150; policy accept;\n"
        "\t\taccept # handle 9\n"
        "\t}\n"
        "}\n",
        "ip6",
        "mcagent",
    )
    (pairs,) = listing.sets
    assert pairs.sockets == ((ip_address("2001:db8::1"), 51821), (ip_address("2001:db8::2"), 4))
    assert listing.packet_counts() == {"mct_to_tunnel": 7}


def test_a_set_of_another_kind_is_made_anew() -> None:
    """A set of networks becomes one of pairs only by being deleted."""
    old = NftSet(table="mcagent", name="s", elements=(ip_network("10.0.0.0/8"),))
    new = NftSet(table="mcagent", name="s", sockets=((ip_address("10.0.0.1"), 5),))
    step = Step(old=old, new=new)
    assert [line.text for line in script(TABLE, [step])] == [
        "add table ip mcagent",
        "delete set ip mcagent s",
        "add set ip mcagent s { typeof ip daddr . udp dport; }",
        "flush set ip mcagent s",
        "add element ip mcagent s { 10.0.0.1 . 5 }",
    ]


def add(resource: NftChain | NftSet) -> Step:
    """Return the step that adds a resource."""
    return Step(new=resource)


def chain(*rules: str, name: str = "mct_x", hook: str = "forward") -> NftChain:
    """Return a chain of our table."""
    return NftChain(table="mcagent", name=name, type="filter", hook=hook, priority=0, rules=rules)


@pytest.mark.parametrize(
    "resource",
    [
        chain("accept\nflush ruleset"),
        chain("accept; drop"),
        chain('accept comment "x"'),
        chain("accept # x"),
        chain("accept \\"),
        chain(name="x y"),
        chain(hook="forward priority 1; policy drop"),
        NftSet(table="mcagent", name="mct_pods", elements=(ip_network("fd00::/8"),)),
        NftSet(table="other", name="mct_pods", elements=()),
        NftSet(table="mcagent", name="mct_pods", elements=(), family="ip6"),
        NftSet(table="mcagent", name="mct_wireguard", sockets=((ip_address("fd00::1"), 5),)),
    ],
)
def test_what_could_leave_its_place_in_the_script_is_objected_to(resource: NftChain | NftSet) -> None:
    """No text of a resource becomes more than the one rule, name or element that it stands for."""
    assert objection(add(resource), TABLE)


def test_chains_are_filled_again_and_not_made_again() -> None:
    """Deleting a base chain lets packets pass without it: only a chain with another hook is deleted."""
    before, after = chain("accept"), chain("drop")
    step = Step(old=before, new=after)
    texts = [line.text for line in script(TABLE, [step])]
    assert not [text for text in texts if text.startswith("delete")]
    assert texts.index("flush chain ip mcagent mct_x") < len(texts) - 1
    moved = chain("drop", hook="input")
    step = Step(old=before, new=moved)
    assert "delete chain ip mcagent mct_x" in [line.text for line in script(TABLE, [step])]
