"""nft texts: what different versions list is read alike, and what is no rule does not get into a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from mcagent.dataplane.nft.apply import apply_steps, objection, script
from mcagent.dataplane.nft.observe import (
    MAX_FOREIGN_RULES,
    ForeignChain,
    NftTable,
    nft_errors,
    parse_listing,
    parse_ruleset,
    run_nft,
)
from mcagent.doctor.readings import chains
from mcagent.model.dataplane.resources import GroupEntry, NftChain, NftSet
from mcagent.model.errors import BackendError
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


# --- scripts --------------------------------------------------------------------------------------------


def texts(*steps: Step, table: NftTable = TABLE) -> list[str]:
    """Return the lines of a script after the one that adds the table."""
    first, *lines = [line.text for line in script(table, steps)]
    assert first == f"add table {table}"
    return lines


PODS = NftSet(table="mcagent", name="pods", elements=(ip_network("10.1.0.0/16"), ip_network("10.3.0.0/16")))
LEARNED = NftSet(table="mcagent", name="peers", learned=True)
PLAIN = NftChain(table="mcagent", name="mct_plain", type="", hook="", priority=0, rules=("accept", "counter"))


def test_an_added_set_gets_its_elements() -> None:
    """In one line; an empty set gets none, and rules fill one that learns."""
    assert texts(Step(new=PODS)) == [
        "add set ip mcagent pods { typeof ip daddr; flags interval; }",
        "flush set ip mcagent pods",
        "add element ip mcagent pods { 10.1.0.0/16, 10.3.0.0/16 }",
    ]
    assert texts(Step(new=LEARNED)) == [
        "add set ip mcagent peers { typeof ip daddr; flags dynamic,timeout; }",
        "flush set ip mcagent peers",
    ]
    six = NftSet(table="mcagent", name="pods", family="ip6", sockets=())
    assert texts(Step(new=six), table=NftTable("ip6", "mcagent")) == [
        "add set ip6 mcagent pods { typeof ip6 daddr . udp dport; }",
        "flush set ip6 mcagent pods",
    ]


def test_a_set_that_another_program_changed_is_deleted_first() -> None:
    """Other elements alone are not enough for that."""
    broken = replace(PODS, intact=False)
    assert texts(Step(old=broken, new=PODS))[0] == "delete set ip mcagent pods"
    fewer = replace(PODS, elements=PODS.elements[:1])
    assert not [text for text in texts(Step(old=fewer, new=PODS)) if text.startswith("delete")]
    assert texts(Step(old=LEARNED, new=replace(LEARNED, learned=False)))[0] == "delete set ip mcagent peers"


def test_rules_of_a_chain_follow_in_their_order() -> None:
    """A base chain has a policy, and lets packets pass by itself; a plain chain has neither type nor hook."""
    assert texts(Step(new=chain("accept", "drop"))) == [
        "add chain ip mcagent mct_x { type filter hook forward priority 0; policy accept; }",
        "flush chain ip mcagent mct_x",
        "add rule ip mcagent mct_x accept",
        "add rule ip mcagent mct_x drop",
    ]
    assert texts(Step(new=PLAIN)) == [
        "add chain ip mcagent mct_plain",
        "flush chain ip mcagent mct_plain",
        "add rule ip mcagent mct_plain accept",
        "add rule ip mcagent mct_plain counter",
    ]


@pytest.mark.parametrize("change", [{"hook": "input"}, {"priority": 1}, {"type": "nat"}])
def test_a_base_chain_at_another_place_is_deleted_and_added(change: dict[str, Any]) -> None:
    """In one transaction, so no packet passes without it."""
    before = chain("accept")
    lines = texts(Step(old=before, new=replace(before, **change)))
    assert lines[:2] == ["flush chain ip mcagent mct_x", "delete chain ip mcagent mct_x"]
    assert lines[2].startswith("add chain ip mcagent mct_x { type ")


def test_what_goes_is_deleted_after_what_uses_it() -> None:
    """Chains before sets; each is added first, so that it does not matter if it is absent."""
    assert texts(Step(old=PODS), Step(old=PLAIN)) == [
        "add set ip mcagent pods { typeof ip daddr; flags interval; }",
        "add chain ip mcagent mct_plain",
        "flush chain ip mcagent mct_plain",
        "delete chain ip mcagent mct_plain",
        "delete set ip mcagent pods",
    ]
    assert texts(Step(old=replace(PODS, intact=False))) == ["delete set ip mcagent pods"]


def test_all_sets_and_chains_are_there_before_the_first_rule() -> None:
    """Rules use sets, and jump to chains; deletions come last."""
    lines = texts(Step(new=chain("jump mct_plain")), Step(old=LEARNED), Step(new=PLAIN), Step(new=PODS))
    kinds = [text.split()[:2] for text in lines]
    first_rule = kinds.index(["add", "rule"])
    assert all(kind in (["add", "chain"], ["add", "set"]) for kind in kinds[:4])
    assert not [kind for kind in kinds[first_rule:] if kind[1] == "chain" or kind == ["add", "set"]]
    assert lines[-1] == "delete set ip mcagent peers"


@pytest.mark.parametrize(
    ("resource", "reason"),
    [
        (replace(PODS, table="other"), "table ip other is not ours"),
        (replace(PODS, family="ip6"), "table ip6 mcagent is not ours"),
        (replace(PODS, name="1x"), "not a name: letters, digits and _ are"),
        (replace(PODS, name="x" * 65), "not a name: letters, digits and _ are"),
        (replace(PODS, name="x" * 64), ""),
        (replace(PODS, elements=(ip_network("fd00::/8"),)), "an element is not of the table's family ip"),
        (
            replace(PLAIN, type="filter"),
            "neither a base chain, whose type and hook are words of nft(8), nor one without them",
        ),
        (
            replace(PLAIN, priority=1),
            "neither a base chain, whose type and hook are words of nft(8), nor one without them",
        ),
        (replace(PLAIN, rules=("accept", "a;b")), "rule 2 is not one rule without a comment: 'a;b'"),
        (PLAIN, ""),
        (chain("ip saddr @commented accept"), ""),
        (GroupEntry(group_id=1, body=""), "GroupEntry is not an nft resource"),
    ],
)
def test_an_objection_says_why(resource: Any, reason: str) -> None:
    """A resource without objection is written."""
    assert objection(Step(new=resource), TABLE) == reason


def test_a_set_of_a_table_of_ipv6_has_its_addresses() -> None:
    """And those of IPv4 are none of them."""
    table = NftTable("ip6", "mcagent")
    own = NftSet(table="mcagent", name="x", family="ip6", sockets=((ip_address("fd00::1"), 5),))
    assert objection(Step(new=own), table) == ""
    foreign = replace(own, sockets=((ip_address("10.0.0.1"), 5),))
    assert objection(Step(new=foreign), table) == "an element is not of the table's family ip6"


# --- transactions ---------------------------------------------------------------------------------------


class RefusingTable(NftTable):
    """A table whose nft refuses each script with one of some words. `scripts` are those that it was given."""

    def __init__(self, *refused: str, stderr: str = "-:1:1-2: Error: syntax error\n") -> None:
        super().__init__("ip", "mcagent")
        object.__setattr__(self, "refused", refused)
        object.__setattr__(self, "stderr", stderr)
        object.__setattr__(self, "scripts", [])

    scripts: list[str]
    refused: tuple[str, ...]
    stderr: str

    def run(self, arguments: Sequence[str], stdin: str = "") -> tuple[int, str, str]:
        """Refuse a script, or not."""
        assert list(arguments) == ["-f", "-"]
        assert stdin.endswith("\n")
        self.scripts.append(stdin)
        return (1, "", self.stderr) if any(word in stdin for word in self.refused) else (0, "", "")


def test_all_steps_are_one_transaction() -> None:
    """Without steps there is none."""
    table = RefusingTable()
    assert apply_steps(table, {0: Step(new=PODS), 1: Step(new=PLAIN)}) == {}
    assert len(table.scripts) == 1
    assert apply_steps(table, {}) == {}
    assert len(table.scripts) == 1


def test_a_refused_transaction_is_applied_step_by_step() -> None:
    """Sets, plain chains, base chains; deletions the other way round. Only the refused step fails."""
    table = RefusingTable("mct_bad", stderr="-:3:1-2: Error: no such type\n\tadd rule\n\t^^^\n")
    bad = replace(PLAIN, name="mct_bad")
    steps = {
        0: Step(old=replace(PODS, name="old_set")),
        1: Step(old=chain(name="old_base")),
        2: Step(old=replace(PLAIN, name="old_plain")),
        3: Step(new=chain("accept")),
        4: Step(new=bad),
        5: Step(new=PLAIN),
        6: Step(new=PODS),
    }
    errors = apply_steps(table, steps)
    names = ["old_set", "old_base", "old_plain", "mct_x", "mct_bad", "mct_plain", "pods"]
    order = [next(place for place, name in enumerate(names) if name in script) for script in table.scripts[1:]]
    assert order == [6, 4, 5, 1, 3, 2, 0]
    assert list(errors) == [4]
    assert str(errors[4]) == "nft: add table ip mcagent chain mct_bad: no such type"
    assert errors[4].retryable


@pytest.mark.parametrize(
    ("stderr", "error"),
    [
        ("-:4:1-2: Error: bad\n", "table ip mcagent chain mct_plain rule 1 (accept): bad"),
        ("-:5:1-2: Error: bad\n", "table ip mcagent chain mct_plain rule 2 (counter): bad"),
        ("-:1:1-2: Error: bad\n", "table ip mcagent table ip mcagent: bad"),
        ("-:0:1-2: Error: bad\n", "table ip mcagent chain mct_plain: -:0:1-2: Error: bad"),
        ("-:6:1-2: Error: bad\n", "table ip mcagent chain mct_plain: -:6:1-2: Error: bad"),
        ("-:9:1-2: Error: far\n-:4:1-2: Error: near\n", "table ip mcagent chain mct_plain rule 1 (accept): near"),
        ("Killed\n", "table ip mcagent chain mct_plain: Killed"),
        ("", "table ip mcagent chain mct_plain: failed silently"),
    ],
)
def test_an_error_is_about_the_line_that_nft_names(stderr: str, error: str) -> None:
    """Or about the whole step, if there is no such line."""
    errors = apply_steps(RefusingTable("mct_plain", stderr=stderr), {7: Step(new=PLAIN)})
    assert {place: str(value) for place, value in errors.items()} == {7: f"nft: add {error}"}


def test_a_step_with_an_objection_is_not_written() -> None:
    """It cannot be retried, and the others are written."""
    table = RefusingTable()
    errors = apply_steps(table, {0: Step(new=chain("a;b")), 1: Step(new=PODS)})
    assert list(errors) == [0]
    assert errors[0].retryable is False
    assert str(errors[0]).startswith("nft: add table ip mcagent chain mct_x: rule 1 is not one rule")
    assert len(table.scripts) == 1
    assert "mct_x" not in table.scripts[0]


# --- listings -------------------------------------------------------------------------------------------


def one_set(*lines: str, family: str = "ip") -> NftSet:
    """Return the set of a listing with these lines."""
    body = "".join(f"\t\t{line}\n" for line in lines)
    (listed,) = parse_listing(
        f"table {family} mcagent {{\n\tset s {{ # handle 1\n{body}\t}}\n}}\n", family, "mcagent"
    ).sets
    return listed


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (("typeof ip daddr", "flags interval"), NftSet(table="mcagent", name="s")),
        (("type ipv4_addr", "flags interval"), NftSet(table="mcagent", name="s")),
        (("typeof ip daddr",), NftSet(table="mcagent", name="s", intact=False)),
        (("typeof ip saddr", "flags interval"), NftSet(table="mcagent", name="s", intact=False)),
        (("typeof ip daddr", "flags dynamic,timeout"), NftSet(table="mcagent", name="s", learned=True)),
        (("typeof ip daddr", "flags dynamic"), NftSet(table="mcagent", name="s", learned=True, intact=False)),
        (("typeof ip daddr . udp dport",), NftSet(table="mcagent", name="s", sockets=())),
        (("type ipv4_addr . inet_service",), NftSet(table="mcagent", name="s", sockets=())),
        (
            ("typeof ip daddr . udp dport", "flags interval"),
            NftSet(table="mcagent", name="s", sockets=(), intact=False),
        ),
    ],
)
def test_a_set_is_intact_if_it_is_of_a_kind_of_the_agent(listed: tuple[str, ...], expected: NftSet) -> None:
    """As nft lists it with "type" or "typeof"."""
    assert one_set(*listed) == expected


def test_a_listing_is_empty_without_any_object() -> None:
    """A map of another program counts as one."""
    assert parse_listing("table ip mcagent {\n}\n", "ip", "mcagent").empty
    assert not parse_listing("table ip mcagent {\n\tmap m { # handle 1\n\t}\n}\n", "ip", "mcagent").empty
    assert not parse_listing("table ip mcagent {\n\tchain c { # handle 1\n\t}\n}\n", "ip", "mcagent").empty
    assert not parse_listing("table ip mcagent {\n\tset s { # handle 1\n\t}\n}\n", "ip", "mcagent").empty


def test_a_chain_that_drops_by_itself_is_not_intact() -> None:
    """Chains of the agent accept what no rule drops; nft does not list every policy."""
    for policy, intact in ((" policy drop;", False), (" policy accept;", True), ("", True)):
        base = f"\t\ttype filter hook input priority -5;{policy}\n"
        text = f"table ip mcagent {{\n\tchain c {{ # handle 1\n{base}\t}}\n}}\n"
        (listed,) = parse_listing(text, "ip", "mcagent").chains
        expected = NftChain(
            table="mcagent", name="c", type="filter", hook="input", priority=-5, rules=(), intact=intact
        )
        assert listed == expected


RULESET = """\
table inet filter {
\tset s {
\t\ttypeof ip daddr
\t}

\tchain input {
\t\ttype filter hook input priority 10; policy drop;
\t\tct state established accept
\t\tdrop
\t}

\tchain helper {
\t\taccept
\t}
}
table ip nat {
\tchain pre {
\t\ttype nat hook prerouting priority dstnat;
\t}

\tchain dev {
\t\ttype filter hook ingress device "eth0" priority -500; policy accept;
\t}
}
"""


def test_chains_of_other_programs_are_read_from_a_ruleset() -> None:
    """With family and table; a priority by name counts as 0, and a policy that is not listed as accept."""
    rules = ("ct state established accept", "drop")
    assert list(parse_ruleset(RULESET)) == [
        ForeignChain(
            family="inet",
            table="filter",
            name="input",
            type="filter",
            hook="input",
            priority=10,
            policy="drop",
            rules=rules,
        ),
        ForeignChain(family="inet", table="filter", name="helper", rules=("accept",)),
        ForeignChain(family="ip", table="nat", name="pre", type="nat", hook="prerouting"),
        ForeignChain(family="ip", table="nat", name="dev", type="filter", hook="ingress", priority=-500),
    ]
    assert str(next(parse_ruleset(RULESET))) == "inet filter input"


def test_a_ruleset_is_read_up_to_a_number_of_rules() -> None:
    """Chains after it are still known, without rules."""
    many = "".join("\t\taccept\n" for _ in range(MAX_FOREIGN_RULES - 1))
    bodies = {"x": many, "y": "\t\tdrop\n\t\tdrop\n", "z": "\t\tdrop\n"}
    chains = "".join(f"\tchain {name} {{\n{body}\t}}\n" for name, body in bodies.items())
    listed = parse_ruleset(f"table ip a {{\n{chains}}}\n")
    assert [(foreign.name, len(foreign.rules)) for foreign in listed] == [
        ("x", MAX_FOREIGN_RULES - 1),
        ("y", 1),
        ("z", 0),
    ]


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("-:1:1-2: Error: one\nadd x\n^^^\n-:2:1-2: Error: two\n", "-:1:1-2: Error: one; -:2:1-2: Error: two"),
        ("  Killed \n", "Killed"),
        ("\n", "failed silently"),
    ],
)
def test_errors_of_nft_have_no_quoted_lines(stderr: str, words: str) -> None:
    """What is no error message is shown as it is."""
    assert nft_errors(stderr) == words


class AnsweringTable(NftTable):
    """A table whose nft answers so."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        super().__init__("ip6", "mcagent")
        object.__setattr__(self, "answer", (code, stdout, stderr))

    answer: tuple[int, str, str]

    def run(self, arguments: Sequence[str], stdin: str = "") -> tuple[int, str, str]:
        """Answer."""
        assert (list(arguments), stdin) == (["-a", "list", "table", "ip6", "mcagent"], "")
        return self.answer


def test_a_table_that_is_absent_has_no_listing() -> None:
    """Nor has one of a kernel without IPv6; another failure is an error."""
    assert AnsweringTable(0, "table ip6 mcagent {\n}\n", "").list("-a") == "table ip6 mcagent {\n}\n"
    for stderr in ("Error: No such file or directory", "Error: Address family not supported by protocol"):
        assert AnsweringTable(1, "", stderr).list("-a") is None
    with pytest.raises(
        BackendError, match=r"^nft: list table ip6 mcagent: Error: Operation not permitted$"
    ) as info:
        AnsweringTable(1, "", "Error: Operation not permitted\n").list("-a")
    assert info.value.retryable


# --- the program ----------------------------------------------------------------------------------------


def program(path: Path, text: str) -> str:
    """Return a program that a shell runs."""
    file = path / "nft"
    file.write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
    file.chmod(0o755)
    return str(file)


def test_comments_in_another_encoding_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script of an administrator may have been written in ISO-8859-1."""
    binary = program(tmp_path, r"printf 'comment \374ber\n'")
    assert run_nft(["list", "ruleset"], binary=binary) == (0, "comment \N{REPLACEMENT CHARACTER}ber\n", "")
    saved = r"printf '*filter\n:X - [0:0]\n-A X -m comment --comment \374ber -j ACCEPT\nCOMMIT\n'"
    (tmp_path / "ip_tables_names").write_text("filter\n")
    monkeypatch.setattr(chains, "_NET", tmp_path)
    monkeypatch.setattr(chains, "_LEGACY", {"ip": ("ip_tables_names", program(tmp_path, saved))})
    (chain,) = chains._legacy("ip")
    assert (chain.name, len(chain.rules)) == ("X", 1)


def test_the_program_gets_arguments_and_script_and_answers_in_english(tmp_path: Path) -> None:
    """Messages are compared, so they must not be translated."""
    binary = program(tmp_path, 'echo "$LC_ALL $*"; cat; echo words >&2; exit 3')
    assert run_nft(["-f", "-"], "add x\n", binary=binary) == (3, "C -f -\nadd x\n", "words\n")
    table = NftTable("ip", "mcagent", binary)
    assert table.run(["list"]) == (3, "C list\n", "words\n")
    assert table.run(["-f", "-"], "add x\n") == (3, "C -f -\nadd x\n", "words\n")


def test_a_program_that_cannot_be_run_is_an_error_of_the_table(tmp_path: Path) -> None:
    """As is one without permission for nf_tables; a warning of a run that succeeded is none."""
    missing = str(tmp_path / "missing")
    with pytest.raises(BackendError) as info:
        NftTable("ip", "mcagent", missing).run(["list"])
    assert str(info.value) == f"nft: run table ip mcagent: there is no {missing}: install nftables"
    words = "Error: cache initialization failed: Operation not permitted"
    table = NftTable("ip", "mcagent", program(tmp_path, f"echo '{words}' >&2; exit 1"))
    with pytest.raises(BackendError) as info:
        table.run(["list"])
    assert str(info.value) == f"nft: run table ip mcagent: {words}"
    table = NftTable("ip", "mcagent", program(tmp_path, f"echo '{words}' >&2"))
    assert table.run(["list"]) == (0, "", f"{words}\n")
